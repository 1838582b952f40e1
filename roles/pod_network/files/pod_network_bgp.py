#!/usr/bin/env python3
"""This node's routes to the pods of other nodes where they come by BGP: what BIRD needs around it.

`run` sets what an earlier daemon had learnt as static routes, and becomes the daemon. `wait` waits for a session, then
takes away the static routes whose ranges are learnt; others stay. `numbers` does the same without waiting, and leaves
the numbers for node_exporter. `end` takes away what was learnt, for a node whose routes are static again.

Prints what it took away. Standard library only.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The kernel's number of BIRD (RTPROT_BIRD) and the metric of its routes in bird.conf.
LEARNT = ("proto", "12", "metric", "32")
SHOW = ("ip", "-json", "-4", "route", "show")
BIRD = "/usr/sbin/bird"
SHOWN = 3
# One number for two faults: no session, and nobody who looks.
LAST_SESSION = "muster_pod_network_bgp_session_timestamp_seconds"
# A session comes up with packets of two daemons: nothing here could wake us.
LOOK_S = 0.5
PASSWORD_HINT = "its password (pod_network_bgp_password), its number (asn) and 179/tcp between the two"
_RANGE = re.compile(r"[0-9.]+/\d+")
_SESSION = re.compile(r"^(?P<name>\S+)\s+BGP\s+\S+\s+(?P<state>\S+)\s+\S+\s*(?P<info>.*)$")


class BgpError(Exception):
    """Something that is not as it must be; the message names it and what to do."""


@dataclass(frozen=True)
class Config:
    """What config.json says of BGP. `peers`: {protocol in bird.conf: address}."""

    host: str
    protocol: int
    peers: Mapping[str, str]
    is_reflector: bool
    wait_s: float
    textfile: Path


@dataclass(frozen=True)
class Session:
    """A session as BIRD shows it: that of a peer of the configuration, or on a reflector of a node."""

    name: str
    info: str

    @property
    def is_up(self) -> bool:
        """Whether routes are exchanged."""
        return self.info.split(" ")[0] == "Established"


@dataclass(frozen=True)
class Routes:
    """Ranges of other nodes in the kernel: those with a static route, and those that BIRD has set and still stands for.

    Of a daemon that was there before some may be left, until the next one takes them away.
    """

    static: frozenset[str]
    learnt: frozenset[str]

    @property
    def left(self) -> frozenset[str]:
        """Static ones that nobody has announced yet."""
        return self.static - self.learnt

    @property
    def spare(self) -> frozenset[str]:
        """Static ones that are learnt too."""
        return self.static & self.learnt


def parse_config(text: str, path: str) -> Config:
    """Read the configuration. Raises BgpError that names file and key."""
    try:
        data: dict[str, Any] = json.loads(text)
        bgp = data["bgp"]
        return Config(
            host=str(bgp["host"]),
            protocol=int(data["protocol"]),
            peers={str(name): str(ipaddress.IPv4Address(address)) for name, address in bgp["peers"].items()},
            is_reflector=bool(bgp["is_reflector"]),
            wait_s=float(bgp["wait_s"]),
            textfile=Path(bgp["textfile"]),
        )
    except KeyError as error:
        raise BgpError(f"{path}: {error.args[0]} is missing; apply the role pod_network again") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BgpError(f"{path}: {error}; correct the inventory and apply the role pod_network") from error


def sessions_of(text: str) -> list[Session]:
    """Every session of `birdc show protocols`; the entries from which sessions of nodes come are none."""
    found = (_SESSION.match(line) for line in text.splitlines())
    return [Session(one["name"], one["info"].strip()) for one in found if one and not one["info"].startswith("Passive")]


def table_of(text: str) -> frozenset[str]:
    """The destinations of `birdc show route`."""
    return frozenset(words[0] for line in text.splitlines() if (words := line.split()) and _RANGE.fullmatch(words[0]))


def ranges_of(text: str) -> frozenset[str]:
    """The destinations of `ip -json route show`."""
    return frozenset(str(ipaddress.IPv4Network(route["dst"])) for route in json.loads(text or "[]"))


def no_session(config: Config, sessions: Sequence[Session], silent: str) -> str:
    """One sentence: the node, each of its peers with what BIRD says of it, and what to do."""
    if silent:
        return f"{config.host}: bird.service does not answer ({silent}); look at `journalctl -u bird`"
    info = {session.name: session.info for session in sessions}
    peers = ", ".join(f"{at} ({info.get(name, 'not in bird.conf')})" for name, at in config.peers.items())
    return (
        f"{config.host}: no BGP session within {config.wait_s:g} s with {peers}; "
        f"see that the peer runs and knows this node, then {PASSWORD_HINT}"
    )


def left_note(left: Iterable[str]) -> str:
    """One sentence on static routes that stay."""
    ordered = sorted(left, key=ipaddress.IPv4Network)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return f"static routes stay until their nodes announce them: {', '.join(ordered[:SHOWN])}{more}"


def page(config: Config, sessions: Sequence[Session], routes: Routes, now: float, before: str) -> str:
    """The numbers as node_exporter reads them; `before` is the page that they replace."""
    up = [session for session in sessions if session.is_up]
    last = re.search(rf"^{LAST_SESSION} (\d+)$", before, flags=re.MULTILINE)
    rows = (
        ("peers", "Peers of the configuration", len(config.peers)),
        ("peers_established", "Peers with a session", sum(session.name in config.peers for session in up)),
        ("sessions_established", "Sessions, on a reflector those of nodes too", len(up)),
        ("routes", "Ranges of other nodes that are learnt and in the kernel", len(routes.learnt)),
        ("static_routes", "Ranges of other nodes with a static route", len(routes.static)),
        ("session_timestamp_seconds", "When there was a session", round(now) if up else int(last[1]) if last else 0),
    )
    return "".join(
        f"# HELP muster_pod_network_bgp_{name} {text}.\n# TYPE muster_pod_network_bgp_{name} gauge\n"
        f"muster_pod_network_bgp_{name} {value}\n"
        for name, text, value in rows
    )


def run(command: Sequence[str], stdin: str = "") -> str:
    """What a command prints. Raises BgpError when it is missing or fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        raise BgpError(f"{command[0]} is not installed; apply the role pod_network") from error
    except subprocess.TimeoutExpired as error:
        raise BgpError(f"`{' '.join(command)}` has no answer within 60 s; look at `journalctl -u bird`") from error
    if done.returncode != 0:
        raise BgpError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def look() -> tuple[list[Session], str]:
    """The sessions, and why there are none where BIRD does not answer."""
    try:
        return sessions_of(run(["birdc", "-r", "show", "protocols"])), ""
    except BgpError as error:
        return [], str(error)


def routes_now(config: Config) -> Routes:
    """Ranges in the kernel."""
    static = ranges_of(run([*SHOW, "proto", str(config.protocol)]))
    learnt = ranges_of(run([*SHOW, *LEARNT]))
    if not static or not learnt:
        return Routes(static, learnt)
    try:
        shown = run(["birdc", "-r", "show", "route", "where", "source", "=", "RTS_BGP"])
    except BgpError:
        return Routes(static, frozenset())
    return Routes(static, learnt & table_of(shown))


def retire(config: Config, routes: Routes, check: bool) -> list[str]:
    """Take the static routes away whose ranges are learnt: packets go on by what BIRD has set beside them."""
    batch = [f"route del {range_} proto {config.protocol}" for range_ in sorted(routes.spare)]
    if batch and not check:
        run(["ip", "-batch", "-"], "\n".join(batch) + "\n")
    return batch


def wait(config: Config, whole: bool, check: bool) -> list[str]:
    """Wait for a session, and with `whole` until every static route is learnt, no longer than `wait_s`.

    Raises BgpError when there is no session then. Only that is a fault: a range may be that of a node that is down.
    """
    until = time.monotonic() + config.wait_s
    while True:
        (sessions, silent), routes = look(), routes_now(config)
        has_session = any(session.is_up for session in sessions) or (config.is_reflector and not silent)
        if has_session and not (whole and routes.left):
            break
        if time.monotonic() > until:
            if not has_session:
                raise BgpError(no_session(config, sessions, silent))
            break
        time.sleep(LOOK_S)
    if routes.left:
        print(left_note(routes.left), file=sys.stderr)
    return retire(config, routes, check)


def numbers(config: Config) -> list[str]:
    """Take away static routes that were learnt meanwhile, and write the numbers where node_exporter reads them."""
    (sessions, _), routes = look(), routes_now(config)
    gone = retire(config, routes, check=False)
    if config.textfile.parent.is_dir():
        kept = Routes(routes.left, routes.learnt)
        before = config.textfile.read_text() if config.textfile.exists() else ""
        write_whole(config.textfile, page(config, sessions, kept, time.time(), before))
    return gone


def end(check: bool) -> list[str]:
    """Take away all that was learnt, behind a daemon that has stopped; role pod_network has set the static routes."""
    learnt = ranges_of(run([*SHOW, *LEARNT]))
    if not learnt:
        return []
    if not check:
        run(["ip", "-batch", "-"], "".join(f"route del {range_} {' '.join(LEARNT)}\n" for range_ in learnt))
    return [f"{len(learnt)} learnt routes"]


def kept_routes(text: str, protocol: int) -> list[str]:
    """The lines for `ip -batch` that set each route of `ip -json route show` as a static one too."""
    lines = []
    for route in json.loads(text or "[]"):
        hops = [route["gateway"]] if "gateway" in route else [hop["gateway"] for hop in route.get("nexthops", ())]
        ways = " ".join(f"nexthop via {hop}" for hop in hops) if len(hops) > 1 else f"via {hops[0]}" if hops else ""
        lines += [f"route replace {route['dst']} {ways} proto {protocol}"] if ways else []
    return lines


def become_daemon(config: Config) -> None:
    """Start BIRD in this process' place; where the kernel still has its routes, as one that starts again.

    Those then are static routes until they are learnt: a daemon whose peers start in the same moment takes them away.
    After a boot there are none, and it must not wait for peers before it sets the first.
    """
    kept = kept_routes(run([*SHOW, *LEARNT]), config.protocol)
    if kept:
        run(["ip", "-batch", "-"], "\n".join(kept) + "\n")
    again = ["-R"] if kept else []
    os.execv(BIRD, [BIRD, "-f", *again, "-u", "bird", "-g", "bird", "-c", "/etc/bird/bird.conf"])


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, for everybody to read."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 with one sentence on stderr when something is not as it must be."""
    parser = argparse.ArgumentParser(description="This node's routes by BGP.")
    parser.add_argument("command", choices=["run", "wait", "numbers", "end"])
    parser.add_argument("config", type=Path, nargs="?", default=Path("/etc/pod-network/config.json"))
    parser.add_argument("--whole", action="store_true", help="wait until every static route is learnt too")
    parser.add_argument("--check", action="store_true", help="only print what would be taken away")
    options = parser.parse_args(arguments)
    try:
        if options.command == "end":
            gone = end(options.check)
        else:
            config = parse_config(options.config.read_text(), str(options.config))
            if options.command == "run":
                become_daemon(config)
            gone = numbers(config) if options.command == "numbers" else wait(config, options.whole, options.check)
    except BgpError as error:
        print(f"pod-network-bgp: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"pod-network-bgp: {error.filename or options.config}: {error.strerror}", file=sys.stderr)
        return 1
    for line in gone:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
