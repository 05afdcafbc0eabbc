"""Runs: their configuration, parts, folders, checkpoints and logs."""
