"""What an attempt needs to know, and what it made: work orders, manifests, reuse, removal."""
