"""Defines a job: its definition, submission, plan, graph and layout."""

__all__ = ["definition", "estimates", "graph", "layout", "plan", "run_options", "submission"]
