"""A node's part in tests between nodes: it offers a rendezvous, joins one once, and signs what it has found itself."""
