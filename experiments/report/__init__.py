"""Pages that show runs and comparisons in a browser, each one file that needs no network."""
