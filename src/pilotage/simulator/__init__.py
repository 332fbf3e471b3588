"""Tests the production engine, core and book on a virtual clock, among agents and sites that fail on purpose."""

__all__ = ["runs", "trials"]
