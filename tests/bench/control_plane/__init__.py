"""What outages and operations cost those who write to the fleet: `make bench-control-plane`, on the lab's hosts."""
