"""Settings with their defaults, and the layers they come from."""
