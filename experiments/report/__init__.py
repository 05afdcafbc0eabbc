"""HTML pages of runs and studies, each a single file that works offline."""
