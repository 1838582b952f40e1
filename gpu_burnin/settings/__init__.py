"""What people set: the configuration file and what they expect of a node."""
