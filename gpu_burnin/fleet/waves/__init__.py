"""A playbook over thousands of nodes, in waves of shards: `muster roll`.

The plan (`plan`) is made once from the inventory as it is then, and kept with it (`book`, `frozen`). Each shard is a
process of its own (`worker`), which outlives the executor (`run`): one that is killed is followed by the next call,
which waits for the shards that still run and begins those that are missing.
"""
