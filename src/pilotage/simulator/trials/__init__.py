"""Runs made-up worlds with checkers, as `simulate` without a job does."""

__all__ = ["definition", "shrink", "trial"]
