"""What the driver and the kernel say about the GPUs: NVML state and the kernel log."""
