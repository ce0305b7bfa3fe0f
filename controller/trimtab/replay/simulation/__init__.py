"""Policies on made-up or recorded loads in simulated time, through the real session and lease machine."""
