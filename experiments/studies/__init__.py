"""Sweeps over methods, settings, tasks and seeds in as few programs as possible."""
