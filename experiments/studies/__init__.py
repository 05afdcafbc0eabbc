"""Studies of methods, settings, tasks and seeds, in as few compiled programs as possible."""
