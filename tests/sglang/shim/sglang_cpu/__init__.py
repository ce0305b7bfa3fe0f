"""Lets a stock SGLang, with no file of it edited, run tiny models on a machine without a GPU."""
