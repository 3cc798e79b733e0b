"""Files that survive crashes: atomic replacement, journals, sealed arrays."""
