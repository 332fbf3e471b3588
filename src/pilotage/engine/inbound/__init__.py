"""Handles input from outside: exchanges of pilots, reports of batch systems, operations of people, new jobs."""

__all__ = ["admission", "batch_reports", "exchanges", "operations", "site_operations"]
