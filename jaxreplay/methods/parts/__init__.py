"""Components that several replay methods share, or that one is built from."""
