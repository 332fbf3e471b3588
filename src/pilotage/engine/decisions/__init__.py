"""What the engine decides, one module for each kind of decision."""
