"""Number formats, random bits, argument checks and the buffer: not for use from outside."""
