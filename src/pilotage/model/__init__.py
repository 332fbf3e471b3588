"""Says what exists: frozen values that every other part shares, and nothing that acts."""
