"""Atomic files, tables, and validation of their content."""
