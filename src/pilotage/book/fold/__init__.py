"""Events are folded into rows: each once, in any order, with the same result."""
