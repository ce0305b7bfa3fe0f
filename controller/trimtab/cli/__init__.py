"""The `trimtab` and `trimtabd` commands."""
