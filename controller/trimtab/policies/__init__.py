"""Policies: which mode for which batch size? Pure: no clock, no I/O, no threads, no logging."""
