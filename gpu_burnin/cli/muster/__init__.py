"""The commands of `muster`."""
