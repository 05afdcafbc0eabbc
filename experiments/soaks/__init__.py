"""Long trials of what must never happen: lost results, drifted trees, bad input that passes."""
