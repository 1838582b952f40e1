"""What the repair ladder does on a node: who uses its GPUs, in which slots they are, their reset. Standard library."""
