"""What replay methods are made of."""
