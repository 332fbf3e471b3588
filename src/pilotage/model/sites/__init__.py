"""Defines a site as its entry in `sites.yaml` describes it, and as a simulation describes its behaviour."""

__all__ = ["entry", "experiment", "healing_experiment", "world"]
