"""Runs of a real job in virtual time: what `simulate JOB` does."""
