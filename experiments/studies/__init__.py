"""Sweeps: methods, settings, tasks and seeds in as few programs as can be."""
