"""What a node keeps and says of itself: runs, evidence, gate, known GPUs, grants of power."""
