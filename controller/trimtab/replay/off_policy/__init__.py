"""What other policies would have earned where a log chose at random: the estimators, and when they may speak."""
