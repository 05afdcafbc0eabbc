"""Reproductions of figures and tables of papers: `python -m experiments.papers list`."""
