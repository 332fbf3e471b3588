"""Decides what follows from a failure: the rules, and the policy that applies them."""

__all__ = ["policy", "rules"]
