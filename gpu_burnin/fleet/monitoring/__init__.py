"""What Prometheus and Alertmanager of a fleet say, read for a page of the whole fleet."""
