"""Defines the rows of the book: registers, tables and streams, and the states that follow from them."""

__all__ = [
    "activities",
    "derived_states",
    "fast_rows",
    "forecasts",
    "healing",
    "ledger",
    "registers",
    "rows",
    "shapes",
    "sketches",
    "streams",
    "tables",
]
