"""Runs one attempt: its scratch folder, inputs, commands, outputs, logs and diagnosis."""

__all__ = ["attempt", "diagnosis", "files", "workplace"]
