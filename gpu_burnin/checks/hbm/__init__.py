"""The hbm check: patterns over all of the memory."""
