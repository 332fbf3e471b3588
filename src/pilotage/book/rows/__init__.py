"""The rows of the book: registers, tables and streams, and the states that follow from them."""
