"""Which nodes may swing their power at the same time: so many at one feed, over all plays of this controller.

A site says how many a feed bears (`limits`). Who grants power waves to a node has a turn at its feed meanwhile
(`turns`): a file in the state directory, that counts while its process runs, and until the waves are over.
"""
