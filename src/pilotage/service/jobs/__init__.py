"""Jobs while they run: submission, late stages, publishing of results, and the driver of the engine."""
