"""Opens the records of jobs that are over, for the service and for `pilotage provenance`."""

__all__ = ["expected_environment", "exports", "index", "recorded_jobs", "records", "rerun", "served_records", "traces"]
