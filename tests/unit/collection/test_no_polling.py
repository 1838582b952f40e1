"""What runs on nodes for their monitoring asks the Kubernetes API for nothing: its load would grow with the fleet.

The node's agent is run against an API server that counts, in tests/unit/node/watch/test_watch_polling.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.site_plays import roles_of, site_plays

ROOT = Path(__file__).resolve().parents[3]
ROLES = ROOT / "roles"
# Kubernetes' own: both hold watches. kubelet's role publishes the report once after a burn-in.
MAY_ASK = {"kubelet", "kube_proxy"}
# No network, or no sockets but those by which the kernel is asked.
MUTE = {
    "PrivateNetwork=true",
    "RestrictAddressFamilies=AF_NETLINK",
    # And sockets of this host, by which daemons are asked.
    "RestrictAddressFamilies=AF_NETLINK AF_UNIX",
}
ASKS = ("kubeconfig", "kubernetes_sd_configs", "KUBERNETES_SERVICE_HOST", "fleet_api_address")


def _roles_on_nodes() -> set[str]:
    """The roles of each play of site.yml whose hosts are nodes or everything."""
    found = set()
    for play in site_plays():
        if any(group in play["hosts"] for group in ("gpu_nodes", "system_nodes", "all")):
            found |= set(roles_of(play))
    return found


def _written(role: str) -> list[Path]:
    return [path for kind in ("templates", "files") for path in (ROLES / role / kind).rglob("*") if path.is_file()]


def _asks(path: Path) -> bool:
    text = path.read_text(errors="ignore")
    return any(word in text for word in ASKS)


def test_no_unit_or_file_of_a_node_asks_the_api_but_kubelets_and_kube_proxys() -> None:
    roles = _roles_on_nodes()
    assert {"host_metrics", "kubelet", "nvidia_dcgm", "gpu_burnin"} <= roles
    asking = {role for role in roles for path in _written(role) if _asks(path)}
    assert asking <= MAY_ASK
    # The words are those by which one that asks is found.
    assert "kubelet" in asking


def _may_speak(unit: str) -> bool:
    """Whether systemd leaves a service a network."""
    return not MUTE & {*unit.splitlines()}


def test_what_a_timer_starts_on_nodes_has_no_network() -> None:
    timers = [path for role in _roles_on_nodes() for path in _written(role) if ".timer" in path.name]
    assert timers
    for timer in timers:
        unit = timer.with_name(timer.name.replace(".timer", ".service")).read_text()
        assert not _may_speak(unit), timer.name
        assert _may_speak("\n".join(line for line in unit.splitlines() if line not in MUTE))


def test_prometheus_has_its_targets_from_the_inventory() -> None:
    written = _written("fleet_monitoring")
    assert written and not [path.name for path in written if "kubernetes_sd_configs" in path.read_text()]
