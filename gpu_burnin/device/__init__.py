"""What a GPU is to a check: opening, buffers, streams, kernels; on CUDA and simulated on the CPU."""
