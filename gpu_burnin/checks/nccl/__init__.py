"""The nccl check: collective operations of all GPUs."""
