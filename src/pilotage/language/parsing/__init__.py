"""From a tree to a checked definition: kinds of values, records with their short forms, rules; also the JSON Schema."""
