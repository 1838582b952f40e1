"""What the proofs of a fleet are worth, and with what probability its nodes are tested in time."""
