"""`gpu-burnin watch` at work: threads that see, and one that thinks."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping

from gpu_burnin import __version__
from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.hardware import load_xids
from gpu_burnin.node.api import NodeApi
from gpu_burnin.node.maintenance.reader import reader
from gpu_burnin.node.watch.agent import Agent
from gpu_burnin.node.watch.cluster import Watcher, Writer
from gpu_burnin.node.watch.gpus import Gpus
from gpu_burnin.node.watch.heartbeat import Sender, Turns
from gpu_burnin.node.watch.kernel import Read, follow
from gpu_burnin.node.watch.system import Say, System
from gpu_burnin.settings.config import Config

_TICK_S = 1.0


def serve(
    config: Config,
    say: Say,
    stop: threading.Event,
    system: System | None = None,
    more: Mapping[str, Callable[[], None]] | None = None,
    library: Callable[[], object] | None = None,
) -> None:
    """Watch until `stop` is set. `system` starts burn-ins, `more` are further threads, `library` is that of Gpus.

    Raises GpuBurninError where the node has no boot id or its XID table is broken.
    """
    inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    failed: list[str] = []
    now_s, api, cloud = time.monotonic, NodeApi(config), reader(config)

    def trouble(why: str, certificate: bool) -> None:
        # Before kubelet has its certificate there is no cluster to speak of.
        inbox.put(lambda: agent.api_trouble(why if certificate else ""))

    def end(why: str) -> None:
        failed.append(why)
        stop.set()

    gpus = Gpus(
        config.watch_poll_s,
        lambda vitals, why: inbox.put(lambda: agent.vitals(vitals, why, now_s())),
        lambda event: inbox.put(lambda: agent.nvml_xid(event, now_s())),
        library,
        end,
    )
    writer = Writer(api, trouble)
    sender, log_turns = Sender(api, lambda why: inbox.put(lambda: agent.heartbeat_trouble(why))), Turns()
    agent = Agent(
        config,
        load_xids(),
        system=system or System(),
        say=say,
        want=writer.want,
        ask_nvml=gpus.ask,
        beat=sender.give,
        log_turns=log_turns,
        maintenance=(lambda: None) if cloud is None else cloud.latest,
    )

    def node_seen(node: dict[str, object] | None) -> None:
        writer.found(node)
        inbox.put(lambda: agent.own_node(node, now_s()))

    def log_read(read: Read) -> None:
        inbox.put(lambda: agent.kernel_log(read, now_s()))

    def start(name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                # A thread that ends in silence would see nothing for months.
                end(f"its thread {name} ended ({type(error).__name__}: {error})")

        threading.Thread(target=guarded, name=name, daemon=True).start()

    watcher = Watcher(api, node_seen, trouble)
    say(f"gpu-burnin {__version__} watches {config.node_name}")
    if cloud is not None:
        cloud.start()
    gpus.start()
    start("kernel-log", lambda: _follow(config.kernel_log, log_read, log_turns))
    if config.publish.server:
        start("node", lambda: watcher.run(stop))
        start("annotations", lambda: writer.run(stop))
        start("heartbeat", lambda: sender.run(stop))
    else:
        say("publish.server is not set: no cluster hears of this node")
    for name, run in (more or {}).items():
        start(name, run)
    next_s = now_s()
    while not stop.is_set():
        with contextlib.suppress(queue.Empty):
            inbox.get(timeout=max(0.0, next_s - now_s()))()
        if now_s() >= next_s:
            agent.tick(now_s())
            next_s = now_s() + _TICK_S
    if failed:
        raise GpuBurninError(f"{config.node_name}: the agent starts anew: {failed[0]}", EXIT_INCONCLUSIVE)


def _follow(spec: str, on_read: Callable[[Read], None], turns: Turns) -> None:
    def rest(seconds: float) -> None:
        turns.turn()
        time.sleep(seconds)

    for read in follow(spec, rest):
        on_read(read)
