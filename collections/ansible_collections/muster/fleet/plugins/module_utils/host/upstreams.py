"""The name servers of a host that a resolver on that host may ask. Standard library only: runs on the hosts.

A host's resolv.conf may name a stub of the host itself (systemd-resolved, dnsmasq), with the real servers in a file of
the stub's. It may also name the very resolver that looks for somebody to ask, straight or through such a stub.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

RESOLV_CONF = "etc/resolv.conf"
# What glibc's resolver reads of resolv.conf (MAXNS).
SERVERS_MAX = 3
RESOLVED_UPSTREAM = "run/systemd/resolve/resolv.conf"
RESOLVED_STUB = "stub-resolv.conf"
# Where systemd-resolved's stubs listen (systemd-resolved(8)).
RESOLVED_ADDRESSES = frozenset({"127.0.0.53", "127.0.0.54"})
# NetworkManager leaves the real servers there whichever stub it puts in front, resolvconf's hook those of its dnsmasq.
DNSMASQ_UPSTREAMS = ("run/NetworkManager/no-stub-resolv.conf", "run/dnsmasq/resolv.conf")
# As `forward` of CoreDNS takes a server.
_SERVER = re.compile(
    r"(?:(?P<scheme>dns|tls)://)?(?:\[(?P<bracketed>[^\]]+)\]|(?P<plain>[^\[\]/]+?))(?::(?P<port>\d+))?"
)


@dataclass(frozen=True)
class Upstreams:
    """Servers to ask, in the order of the host's own resolver; `source` is the file or the variable that names them.

    `stub` is the host's own resolver that stands before them and is left out, "" where there is none.
    """

    servers: tuple[str, ...]
    source: str
    stub: str = ""


def name_servers(path: Path) -> tuple[str, ...]:
    """The addresses that a resolv.conf names, each once (resolv.conf(5)); none of a file that cannot be read."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ()
    return tuple(dict.fromkeys(words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"))


def is_resolved_stub(root: Path = Path("/")) -> bool:
    """Whether /etc/resolv.conf names systemd-resolved's stub alone: a link to its file, a copy, or written by hand."""
    etc = root / RESOLV_CONF
    servers = name_servers(etc)
    linked = etc.is_symlink() and etc.readlink().name == RESOLVED_STUB
    return linked or (bool(servers) and set(servers) <= RESOLVED_ADDRESSES)


def upstreams(own: str, given: Sequence[str] = (), root: Path = Path("/")) -> Upstreams:
    """Whom a resolver that listens on the address `own` asks: the servers `given`, else those of the host.

    Raises FleetError where there is none, or where questions would come back to `own`.
    """
    if given:
        return _refuse_loop(own, Upstreams(_checked(given, "node_dns_upstreams"), "node_dns_upstreams"))
    servers = _servers(root, RESOLV_CONF)
    stubs = tuple(server for server in servers if _is_stub(server))
    # With a real server beside it, as dhclient writes it, a stub is one server of several.
    behind: tuple[str, ...] = ()
    if is_resolved_stub(root):
        behind = (RESOLVED_UPSTREAM,)
    elif servers and stubs == servers:
        behind = DNSMASQ_UPSTREAMS
    for path in behind:
        if real := tuple(server for server in _servers(root, path) if not _is_stub(server)):
            return _refuse_loop(own, Upstreams(real, f"/{path}", stub=", ".join(stubs) or "systemd-resolved"))
    if not servers:
        raise FleetError(
            f"/{RESOLV_CONF} names no name server, so nobody would answer for names outside of the cluster; give the "
            "host one, or set node_dns_upstreams"
        )
    # Where nobody tells what stands behind a stub, it is asked itself, as the host asks it.
    return _refuse_loop(own, Upstreams(servers, f"/{RESOLV_CONF}"))


def _refuse_loop(own: str, found: Upstreams) -> Upstreams:
    circles = [server for server in found.servers if _address(server) == ipaddress.ip_address(own)]
    if circles:
        behind = f" (behind {found.stub})" if found.stub else ""
        raise FleetError(
            f"{found.source}{behind} names {circles[0]}, this node's own resolver, so questions would go in a circle; "
            "take it out there, or name the site's resolvers in node_dns_upstreams"
        )
    return found


def _is_stub(server: str) -> bool:
    """Whether it is a resolver of the host itself: on loopback, or the address that means this host (0.0.0.0, ::)."""
    address = _address(server)
    return address.is_loopback or address.is_unspecified


def _servers(root: Path, path: str) -> tuple[str, ...]:
    """Those of a resolv.conf that the host's resolver reads."""
    return _checked(name_servers(root / path)[:SERVERS_MAX], f"/{path}")


def _checked(servers: Sequence[str], source: str) -> tuple[str, ...]:
    """The servers. Raises FleetError for one that is no address."""
    for server in servers:
        try:
            _address(server)
        except FleetError as error:
            raise FleetError(f"{source} names {error}") from None
    return tuple(servers)


def _address(server: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address of a server as CoreDNS takes it; ::ffff:A.B.C.D is A.B.C.D."""
    for text in (server, *_parts(server)):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        return getattr(address, "ipv4_mapped", None) or address
    raise FleetError(f"{server!r}, which is no address of a name server; write an IP address, or ADDRESS:PORT")


def _parts(server: str) -> tuple[str, ...]:
    found = _SERVER.fullmatch(server)
    return (found["bracketed"] or found["plain"],) if found else ()
