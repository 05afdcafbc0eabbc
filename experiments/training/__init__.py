"""The training loop: its phases, compiled or around environments on the host, over many seeds."""
