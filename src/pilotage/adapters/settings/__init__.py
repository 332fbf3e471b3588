"""Files of settings, sites, keys and certificates."""
