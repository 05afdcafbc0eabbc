"""Benchmarks of speed, some with peers, and `commits`, which compares numbers of two commits."""
