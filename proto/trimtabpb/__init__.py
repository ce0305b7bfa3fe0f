"""The wire protocol of Trimtab."""
