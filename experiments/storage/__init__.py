"""Files that are written whole, tables, and checks of what is read."""
