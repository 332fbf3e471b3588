"""Batch systems that are not at hand, played: they run what is submitted, and print what their documentation shows."""
