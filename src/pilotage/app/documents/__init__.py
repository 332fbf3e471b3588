"""Documents of a folder: found, checked, converted, with what is chosen for their parameters."""
