"""What a step and the callback `muster.fleet.roll_results` agree on: the variable with the folder, and its files."""

from __future__ import annotations

FOLDER_VARIABLE = "MUSTER_ROLL_STEP"
# The play that runs, and at the end what became of the hosts.
PLAY, OUTCOMES = "play.txt", "outcomes.json"
