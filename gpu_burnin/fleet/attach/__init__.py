"""Muster in a cluster that others built: its objects made of a few settings, written there, looked at, removed."""
