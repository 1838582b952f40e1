"""The admitter's service: all I/O between the cluster and decide(). One leader, which watches, decides and writes."""
