"""Reads tables of latencies, runs and measured pilots, and answers `pilotage forecast` from them."""

__all__ = ["answers", "drawings", "reproduction", "site_latencies"]
