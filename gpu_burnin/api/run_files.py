"""Names of the files that a run leaves, and the largest number that a run may have."""

from __future__ import annotations

JOURNAL = "journal.jsonl"
EVIDENCE = "evidence.json"
SIGNATURE = "evidence.json.sig"
HARDWARE = "hardware.json"
# Process of the run, and the number of the one that counted for the node until it began.
BEGUN = "begun"
# What JSON readers everywhere hold exactly.
MAX_SEQUENCE = 1 << 53
