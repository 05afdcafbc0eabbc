"""How commands read what a user types."""
