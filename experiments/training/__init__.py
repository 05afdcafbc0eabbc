"""The training loop: its steps, compiled or around environments on the host, over many seeds."""
