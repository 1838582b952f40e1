"""The webhook that adds the preflight taint to each new GPU Node, in a cluster that has no policy that can."""
