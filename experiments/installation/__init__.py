"""Missing packages, the commands that install them, and the device that JAX uses."""
