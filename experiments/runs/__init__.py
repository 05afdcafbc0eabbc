"""Runs: what they are made of, their folders, checkpoints and logs."""
