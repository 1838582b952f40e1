"""What the published detection rules of gpu-burn, DCGM, nvbandwidth and nccl-tests see of a fault."""
