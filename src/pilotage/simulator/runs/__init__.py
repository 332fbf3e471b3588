"""Runs a real job in virtual time, as `simulate JOB` does."""

__all__ = ["behaviour", "charts", "comparison", "experiment", "fitting", "run"]
