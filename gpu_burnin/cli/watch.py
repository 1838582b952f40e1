"""`gpu-burnin watch`: the node's agent. It runs for months, so it imports little."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from gpu_burnin.cli.options import host_config, host_options
from gpu_burnin.system import journald


@click.command()
@click.option("--contained", is_flag=True, help="In a pod: no systemd, an own key, and enrolment (`muster attach`).")
@click.option("--node-name", metavar="NAME", help="With --contained: name of the Node that the pod is on.")
@host_options
def watch(config_path: Path | None, state_dir: Path | None, contained: bool, node_name: str | None) -> None:
    """Watch this node's GPUs while users work on them; gpu-burnin-watch.service runs it.

    It follows the kernel log and NVML. A fatal XID, a lost GPU or other hardware than was tested closes the local gate
    at once and revokes the node's evidence. It starts a burn-in when the admitter asks for one, and tells what it
    cannot see on the node's own Node. It ends with SIGTERM; no work is touched.
    """
    from gpu_burnin.node.watch.serve import serve

    if contained != (node_name is not None):
        raise click.UsageError("--contained and --node-name belong together")
    config, stop = host_config(config_path, state_dir), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def say(message: str, code: str = "") -> None:
        priority = journald.Priority.WARNING if code else journald.Priority.INFO
        entry = journald.Entry(message, "gpu-burnin", priority, "agent", config.node_name, code=code)
        if not (journald.is_output() and journald.send(entry)):
            click.echo(message)

    if node_name is None:
        serve(config, say, stop)
        return
    from gpu_burnin.node import contained as pod

    config = pod.prepare(config, node_name)
    system = pod.Contained(config, config_path)
    beside = {
        "enrolment": lambda: pod.keep_enrolled(config, say, stop),
        "driver": lambda: pod.keep_driver(node_name, say, stop),
    }
    try:
        serve(config, say, stop, system, beside, pod.nvml_file)
    finally:
        if system.end():
            say("the burn-in that was under way is ended with this pod")
