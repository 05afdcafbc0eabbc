"""The codebase around the library: commands at the top, one room below for each of its concerns."""
