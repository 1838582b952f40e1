"""Jobs of teams: what the inventory says of them, and what Kueue and JobSet bring along and are told."""
