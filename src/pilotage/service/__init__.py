"""What runs: the keeper of the book, its HTTP side, deliveries, and who may do what."""
