"""Commands that show jobs and operate on them."""

__all__ = ["logs", "operations", "outputs", "query", "status", "tags"]
