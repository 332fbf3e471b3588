"""Commands that run, submit, watch and control jobs, and show their states, logs and outputs."""

__all__ = ["healing", "logs", "operations", "outputs", "run", "status", "submit"]
