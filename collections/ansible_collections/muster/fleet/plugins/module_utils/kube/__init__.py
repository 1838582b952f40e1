"""Kubernetes' own components: their health, kubelet's state, what an upgrade may do."""
