"""What runs beside etcd: its API, its data, a member replaced, a snapshot restored."""
