"""Replacements of JAX operations that are tuned to XLA on CPU."""
