"""The power check: synchronised waves of load, and everything at once."""
