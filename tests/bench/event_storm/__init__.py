"""What a storm of events does to everything else."""
