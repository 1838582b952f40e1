"""The pcie check: copies between the host and each GPU."""
