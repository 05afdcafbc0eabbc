"""How commands read their options."""
