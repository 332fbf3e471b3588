"""Texts and what stands in them: strict YAML and JSON as trees, templates, patterns, file names, quantities."""
