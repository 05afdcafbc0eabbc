"""What is installed here, what is missing and the command that mends it, what JAX runs on."""
