"""The check `verified` of Kueue's workloads: a job starts on nodes that the ledger vouches for, or not at all."""
