"""Statistics of results: intervals, paired comparisons, verdicts."""
