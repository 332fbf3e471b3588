"""What happened and what follows from it: events joined into facts, and the states, queries and statistics over them."""
