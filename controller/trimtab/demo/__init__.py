"""The embedded engine: Trimtab's real plugin inside a small scheduler loop, without a GPU and without SGLang."""
