"""What finished runs show: statistics, figures, tables and films."""
