"""Events and their payloads, as the book stores them."""
