"""Controller side: reaching many hosts over SSH."""
