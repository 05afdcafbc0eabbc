"""Figures of results, described once and drawn by matplotlib."""
