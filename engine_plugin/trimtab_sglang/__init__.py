"""Trimtab's plugin inside SGLang. Importing this package imports nothing else."""
