"""Traces, recorded decode steps in one file: what they hold, how they are made of other files, read and summed up."""
