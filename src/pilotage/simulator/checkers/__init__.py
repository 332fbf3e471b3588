"""What must hold in every world, whatever fails: each checker watches one promise."""
