"""What events mean to the state: one function for each type."""
