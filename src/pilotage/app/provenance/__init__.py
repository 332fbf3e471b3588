"""Opens the records of jobs that are over, for the service and for `pilotage provenance`."""

__all__ = ["records", "served_records"]
