"""Maintenance windows: what the cloud announces for this machine, in one form. Standard library only."""
