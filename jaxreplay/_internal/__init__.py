"""Internal utilities, which are not part of the public API."""
