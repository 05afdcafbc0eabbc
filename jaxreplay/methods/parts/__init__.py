"""Components of replay methods."""
