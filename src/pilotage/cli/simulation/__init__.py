"""Commands that simulate a job at its sites, or test pilotage itself."""

__all__ = ["simulate"]
