"""Journals of the daemon: what is in one, and whether every decision in it follows from the record."""
