"""Baselines: what each GPU's rates are among its peers, and over the weeks."""

# Healthy GPUs and nodes that are named in a look at a fleet, at the most, on average.
FALSE_NAMES = 0.01
# Fewer peers than these are not enough: their tail is five values or less, and the limit over sixteen robust sigmas.
LEAST_PEERS = 30
# Tests of nodes outside that are asked for and have not come: no more at a time, unless more are wanted.
MOST_ASKED = 8
