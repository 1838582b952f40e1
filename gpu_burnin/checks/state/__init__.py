"""The state check: does each GPU look as its model should."""
