"""The report of a replay: one HTML page that stands by itself."""
