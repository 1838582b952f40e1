"""What nodes cost the control plane without any admission: certificates, pods, watches, Leases, heap and etcd."""
