"""Mutation testing: one-line bugs drawn at random from every room, and whether some test notices them."""
