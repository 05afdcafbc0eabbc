"""Figures of the papers, reproduced: `python -m experiments.papers list`."""
