"""What happened to a node, a pod or a job: one time line from all that tells of it, and its first cause."""
