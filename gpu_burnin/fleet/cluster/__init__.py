"""The fleet as the cluster knows it: read and asked of by `muster`, with an admin's kubeconfig."""
