"""What other policies would have made of a recorded trace: the courses, their sums, and the verdict with intervals."""
