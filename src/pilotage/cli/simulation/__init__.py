"""Commands that simulate a job at its sites or a published experiment, or test pilotage itself."""

__all__ = ["reproduce", "simulate"]
