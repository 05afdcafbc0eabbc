"""Benchmarks of speed, some against peers; `commits` compares the numbers of two commits."""
