"""What the engine knows: plain data, which imports nothing that acts on it."""
