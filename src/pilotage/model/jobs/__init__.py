"""Defines a job: its definition, submission, plan, graph and layout."""

__all__ = ["definition", "estimates", "file_plan", "graph", "layout", "plan", "run_options", "submission"]
