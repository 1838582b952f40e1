"""The command line of `muster`, the fleet's command: a table of what is imported on use."""

from __future__ import annotations

from collections.abc import Mapping

import click

from gpu_burnin import __version__
from gpu_burnin.cli.program import LazyGroup, Row

NAME = "muster"
_ROOM = "gpu_burnin.cli.muster"
# Adding a command is adding its row.
TABLE: Mapping[str, Row] = {
    "admitter": (
        f"{_ROOM}.admitter",
        "admitter",
        "Admit nodes and watch over them: the service of the API-server hosts.",
    ),
    "attach": (f"{_ROOM}.attach", "attach", "Bring Muster into a cluster that others built."),
    "baseline": (f"{_ROOM}.baseline", "baseline", "Say which GPUs pass and are slow among their peers, or get slower."),
    "completion": ("gpu_burnin.cli.completion", "completion", "Print the completion script for SHELL."),
    "coverage": (f"{_ROOM}.coverage", "coverage", "Say how old each node's proof is, and how probable a test is."),
    "detach": (f"{_ROOM}.attach", "detach", "Remove from a cluster all that attach has written."),
    "fabric": (f"{_ROOM}.fabric", "fabric", "Test nodes with each other, and say what the results name."),
    "gate-probe": (
        f"{_ROOM}.gate_probe",
        "gate_probe",
        "Say whether this host's API server keeps the gate.",
    ),
    "image": (f"{_ROOM}.image", "image", "Let machines in that boot from the fleet's image and enrol themselves."),
    "logs": (f"{_ROOM}.logs", "logs", "Show what a job's processes print."),
    "machine": (f"{_ROOM}.machine", "machine", "Keep the scaler's hands off machines, or give them back to it."),
    "mirror": (f"{_ROOM}.mirror", "mirror", "Have the programs that hosts fetch, and print their folder."),
    "node": (f"{_ROOM}.node", "node", "Hold nodes, release them, quarantine them, or have them tested."),
    "pause": (f"{_ROOM}.node", "pause", "Pause the fleet: no node is let in or tested."),
    "plan": (f"{_ROOM}.plan", "plan", "Say what the planned size of a fleet asks for, before anything is built."),
    "probe": (f"{_ROOM}.probe", "probe", "Try many hosts at once: TCP, SSH, host key, login."),
    "resume": (f"{_ROOM}.node", "resume", "End the fleet's pause."),
    "retest": (f"{_ROOM}.retest", "retest", "Ask idle nodes, drawn at random, for a test."),
    "roll": (f"{_ROOM}.roll", "roll", "Run a playbook over thousands of nodes, in waves."),
    "run": (f"{_ROOM}.run", "run", "Run a script or a folder on whole nodes: all of them or none."),
    "scaler": (
        f"{_ROOM}.scaler",
        "scaler",
        "Switch machines on and off as jobs need them: a service of the API-server hosts.",
    ),
    "status": (f"{_ROOM}.status", "status", "Say how the fleet's nodes stand, and which need a person."),
    "teams": (f"{_ROOM}.teams", "teams", "Say what each team has and uses, and why its first job waits."),
    "webhook": (f"{_ROOM}.webhook", "webhook", "Add the preflight taint to new GPU Nodes: a service of attach."),
    "who": (f"{_ROOM}.who", "who", "Say who can do what in a namespace, and who did what there."),
    "why": (f"{_ROOM}.why", "why", "Say what happened to a node, a pod or a job, and what set it off."),
}


@click.group(NAME, cls=LazyGroup, table=TABLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name=NAME)
def cli() -> None:
    """The fleet's command.

    Exit codes: 0 yes or done, 1 a negative answer, 2 usage or configuration error, 3 it could not be told.
    """
