"""The repair ladder, on the controller: what is next for a node, what forbids it, its BMC, its technician's order."""
