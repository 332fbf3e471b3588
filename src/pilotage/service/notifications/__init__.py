"""Subscriptions, and the delivery of what they ask for."""
