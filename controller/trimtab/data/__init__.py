"""Measured tables that ship with the package."""
