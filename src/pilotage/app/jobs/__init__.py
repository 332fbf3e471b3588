"""Jobs of a folder: submitted, watched, their results taken, their leftovers removed."""
