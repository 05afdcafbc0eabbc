"""Numbers computed from results: intervals, paired comparisons, verdicts."""
