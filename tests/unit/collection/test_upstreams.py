"""Whom a node's own name server asks: the host's servers, those behind a stub in all its forms, and never itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.upstreams import Upstreams, upstreams

OWN = "169.254.20.10"
ETC, RESOLVED = "etc/resolv.conf", "run/systemd/resolve/resolv.conf"
RESOLVED_STUB = "run/systemd/resolve/stub-resolv.conf"
MANAGER, NO_STUB = "run/NetworkManager/resolv.conf", "run/NetworkManager/no-stub-resolv.conf"
RESOLVCONF, DNSMASQ = "run/resolvconf/resolv.conf", "run/dnsmasq/resolv.conf"
REAL = "search example.com\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n"
SERVERS = ("192.0.2.1", "192.0.2.2")
STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n"


def make(root: Path, files: Mapping[str, str], link: str = "") -> Path:
    """A root folder with these files, /etc/resolv.conf a link to `link` where that is given."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if link:
        (root / "etc").mkdir(exist_ok=True)
        (root / ETC).symlink_to(link)
    return root


@pytest.mark.parametrize(
    ("files", "link", "found"),
    [
        pytest.param({ETC: REAL}, "", Upstreams(SERVERS, f"/{ETC}"), id="a file of the site"),
        pytest.param(
            {RESOLVED_STUB: STUB, RESOLVED: REAL},
            "../run/systemd/resolve/stub-resolv.conf",
            Upstreams(SERVERS, f"/{RESOLVED}", "127.0.0.53"),
            id="resolved, a link to its stub",
        ),
        pytest.param(
            {RESOLVED: REAL},
            "../run/systemd/resolve/stub-resolv.conf",
            Upstreams(SERVERS, f"/{RESOLVED}", "systemd-resolved"),
            id="resolved, a link that leads nowhere yet",
        ),
        pytest.param(
            {ETC: STUB, RESOLVED: REAL},
            "",
            Upstreams(SERVERS, f"/{RESOLVED}", "127.0.0.53"),
            id="resolved, a copy",
        ),
        pytest.param(
            {ETC: "nameserver\t127.0.0.54\n", RESOLVED: REAL},
            "",
            Upstreams(SERVERS, f"/{RESOLVED}", "127.0.0.54"),
            id="resolved, its other stub by hand",
        ),
        pytest.param(
            {RESOLVED: REAL},
            "../run/systemd/resolve/resolv.conf",
            Upstreams(SERVERS, f"/{ETC}"),
            id="resolved, a link to the real servers",
        ),
        pytest.param(
            {ETC: STUB}, "", Upstreams(("127.0.0.53",), f"/{ETC}"), id="resolved, and nobody tells what is behind"
        ),
        pytest.param(
            {ETC: STUB, RESOLVED: STUB},
            "",
            Upstreams(("127.0.0.53",), f"/{ETC}"),
            id="resolved before another stub",
        ),
        pytest.param(
            {MANAGER: "nameserver 127.0.0.1\n", NO_STUB: REAL},
            "../run/NetworkManager/resolv.conf",
            Upstreams(SERVERS, f"/{NO_STUB}", "127.0.0.1"),
            id="NetworkManager with dnsmasq",
        ),
        pytest.param(
            {ETC: "nameserver 127.0.1.1\n", NO_STUB: REAL},
            "",
            Upstreams(SERVERS, f"/{NO_STUB}", "127.0.1.1"),
            id="NetworkManager with dnsmasq, at its older address",
        ),
        pytest.param(
            {MANAGER: STUB, NO_STUB: "nameserver 192.0.2.9\n", RESOLVED: REAL},
            "../run/NetworkManager/resolv.conf",
            Upstreams(SERVERS, f"/{RESOLVED}", "127.0.0.53"),
            id="NetworkManager with resolved",
        ),
        pytest.param(
            {MANAGER: REAL}, "../run/NetworkManager/resolv.conf", Upstreams(SERVERS, f"/{ETC}"), id="NetworkManager"
        ),
        pytest.param(
            {RESOLVCONF: REAL}, "../run/resolvconf/resolv.conf", Upstreams(SERVERS, f"/{ETC}"), id="resolvconf"
        ),
        pytest.param(
            {RESOLVCONF: "nameserver 127.0.0.1\n", DNSMASQ: REAL},
            "../run/resolvconf/resolv.conf",
            Upstreams(SERVERS, f"/{DNSMASQ}", "127.0.0.1"),
            id="resolvconf with dnsmasq",
        ),
        pytest.param(
            {ETC: "nameserver ::1\nnameserver 127.0.0.1\n", DNSMASQ: REAL},
            "",
            Upstreams(SERVERS, f"/{DNSMASQ}", "::1, 127.0.0.1"),
            id="dnsmasq on both families",
        ),
        pytest.param(
            {ETC: "nameserver 127.0.0.1\n"},
            "",
            Upstreams(("127.0.0.1",), f"/{ETC}"),
            id="a resolver that tells nobody",
        ),
        pytest.param(
            {ETC: "nameserver 0.0.0.0\n", DNSMASQ: REAL},
            "",
            Upstreams(SERVERS, f"/{DNSMASQ}", "0.0.0.0"),
            id="this host",
        ),
        pytest.param(
            {ETC: "nameserver 127.0.0.53\nnameserver 192.0.2.1\n", RESOLVED: REAL},
            "",
            Upstreams(("127.0.0.53", "192.0.2.1"), f"/{ETC}"),
            id="a stub beside a real server",
        ),
        pytest.param(
            {ETC: "nameserver 169.254.169.253\nnameserver fe80::1%eth0\n"},
            "",
            Upstreams(("169.254.169.253", "fe80::1%eth0"), f"/{ETC}"),
            id="link-local servers, as clouds and routers have them",
        ),
        pytest.param(
            {ETC: "# by hand\n;nameserver 192.0.2.7\nnameserver 192.0.2.1 # the first\nnameserver 192.0.2.1\n"},
            "",
            Upstreams(("192.0.2.1",), f"/{ETC}"),
            id="comments, and one twice",
        ),
        pytest.param(
            {ETC: "".join(f"nameserver 192.0.2.{number}\n" for number in range(1, 6))},
            "",
            Upstreams(("192.0.2.1", "192.0.2.2", "192.0.2.3"), f"/{ETC}"),
            id="more than a resolver reads",
        ),
    ],
)
def test_whom_the_host_asks(tmp_path: Path, files: dict[str, str], link: str, found: Upstreams) -> None:
    assert upstreams(OWN, root=make(tmp_path, files, link)) == found


@pytest.mark.parametrize(
    ("files", "names"),
    [
        pytest.param({ETC: f"nameserver {OWN}\n"}, f"/{ETC} names {OWN}", id="straight"),
        pytest.param({ETC: f"nameserver 192.0.2.1\nnameserver {OWN}\n"}, f"/{ETC} names {OWN}", id="beside others"),
        pytest.param({ETC: f"nameserver ::ffff:{OWN}\n"}, f"names ::ffff:{OWN}", id="as IPv6"),
        pytest.param(
            {ETC: STUB, RESOLVED: f"nameserver {OWN}\n"},
            rf"/{RESOLVED} \(behind 127.0.0.53\) names {OWN}",
            id="behind resolved",
        ),
        pytest.param(
            {ETC: "nameserver 127.0.0.1\n", NO_STUB: f"nameserver {OWN}\n"},
            rf"/{NO_STUB} \(behind 127.0.0.1\) names",
            id="behind dnsmasq",
        ),
        pytest.param({ETC: f"nameserver 127.0.0.53\nnameserver {OWN}\n"}, f"/{ETC} names {OWN}", id="beside a stub"),
    ],
)
def test_a_circle_is_refused_with_where_it_is_and_what_to_do(tmp_path: Path, files: dict[str, str], names: str) -> None:
    with pytest.raises(
        FleetError, match=f"{names}.*in a circle; take it out there, or name the site's resolvers in node_dns"
    ):
        upstreams(OWN, root=make(tmp_path, files))


@pytest.mark.parametrize("given", [OWN, f"{OWN}:53", f"dns://{OWN}", f"tls://{OWN}:853", f"[::ffff:{OWN}]:53"])
def test_a_circle_by_the_inventory_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(FleetError, match=r"^node_dns_upstreams names .* circle"):
        upstreams(OWN, ["192.0.2.1", given], tmp_path)


def test_what_the_inventory_names_is_taken_as_it_is(tmp_path: Path) -> None:
    given = ["192.0.2.1", "192.0.2.2:5353", "dns://[2001:db8::1]:53", "2001:db8::2", "127.0.0.53"]
    assert upstreams(OWN, given, make(tmp_path, {ETC: f"nameserver {OWN}\n"})) == Upstreams(
        tuple(given), "node_dns_upstreams"
    )


@pytest.mark.parametrize("files", [{}, {ETC: ""}, {ETC: "search example.com\n"}])
def test_a_host_without_a_server_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(FleetError, match=r"names no name server.*give the host one, or set node_dns_upstreams"):
        upstreams(OWN, root=make(tmp_path, files))


@pytest.mark.parametrize("given", ["resolver.example.com", "192.0.2.300", "/etc/resolv.conf"])
def test_what_is_no_address_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(FleetError, match=f"^node_dns_upstreams names '{given}', which is no address"):
        upstreams(OWN, [given], tmp_path)
    with pytest.raises(FleetError, match=f"^/etc/resolv.conf names '{given}', which is no address"):
        upstreams(OWN, root=make(tmp_path, {ETC: f"nameserver {given}\n"}))
