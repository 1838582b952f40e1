"""What jobs cost and get: Kueue on nodes without machines."""
