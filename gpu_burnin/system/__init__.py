"""The operating system as the burn-in uses it: files, clock, streams, child processes, signals, limits."""
