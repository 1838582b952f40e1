"""The plan of a whole fleet: what its size asks of control plane, disks, certificates, power and time."""
