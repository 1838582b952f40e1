"""The first boot of a machine from the fleet's image: it says who it is, and becomes that node."""
