"""Reads tables of latencies, runs and measured pilots, and answers `pilotage forecast` from them."""

__all__ = ["answers", "drawings", "job_scores", "reproduction", "site_latencies"]
