"""Speed of the library, measured: `python -m experiments.benchmarks.replay --help`."""
