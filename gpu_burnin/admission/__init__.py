"""Cluster side: verifying evidence and opening or closing the gate of a Kubernetes node."""
