"""What a step and the plugins in its run agree on: the variable with the step's folder, and its files."""

from __future__ import annotations

FOLDER_VARIABLE = "MUSTER_ROLL_STEP"
# The hosts of this run of ansible-playbook, a line each; the play that runs; at the end what became of the hosts.
LIMIT, PLAY, OUTCOMES = "limit", "play.txt", "outcomes.json"
# Why a shard did not run on its worker: no feed had a turn for it in time.
NO_TURN = "no-turn"
# Why a worker has lost its shard, in words.
LOST_WHY = "lost-why"
# What ansible-playbook printed.
OUTPUT = "output.log"
