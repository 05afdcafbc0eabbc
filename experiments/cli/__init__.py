"""Command lines: options from dataclasses, help, and error messages of one line."""
