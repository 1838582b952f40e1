"""Another NVIDIA driver on hosts that do work: who changes when, and what became of it."""
