"""The site agent: submits pilots from inside a cluster, and relays for nodes without a way out."""
