"""Which nodes are dedicated to which team: from what is there and what is wanted, what should change. Pure."""
