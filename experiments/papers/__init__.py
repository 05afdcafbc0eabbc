"""Figures of the papers, drawn anew: `python -m experiments.papers list`."""
