"""Ask one API server whether its gate holds: it must refuse a Node without the taint, by the policies that were
installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, node_path
from gpu_burnin.api.names import GATE_POLICY, GATE_PROBE_NODE
from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.files import read_text

# Role node_admission writes it beside the policies, and the API server says the same of those that it has loaded. Where
# there are teams, the second one has a line for each plugin that asks Kueue and JobSet: its name, and the hash.
HASH_FILE, WEBHOOKS_FILE = "policy.hash", "webhooks.hash"
_POLICIES, _WEBHOOKS = "ValidatingAdmissionPolicy", ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_LOADED = re.compile(r"^apiserver_manifest_admission_config_controller_last_config_info\{(.*)\} 1$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_FORBIDDEN = 403
# Who leads one at a time, with a Lease of its own name.
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")


class NotAsked(GpuBurninError):
    """Whether the gate holds could not be found out, which is neither yes nor no."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_INCONCLUSIVE)


@dataclass(frozen=True)
class Gate:
    """What an API server did and said. `loaded` is "" when it has no policies; hashes begin with sha256:. `expected` is
    "" where the policies could not be compared, of a gate that does not refuse.

    `webhooks`: of each plugin that should have webhooks, or has some, whether they are those that were installed.
    """

    refused: bool
    loaded: str
    expected: str
    webhooks: Mapping[str, bool] = field(default_factory=dict)

    @property
    def in_force(self) -> bool:
        """It refuses, by the policies that were installed."""
        return self.refused and self.loaded == self.expected

    @property
    def changed_webhooks(self) -> list[str]:
        """The plugins whose webhooks are others than those that were installed."""
        return [plugin for plugin, right in self.webhooks.items() if not right]


def probe(api: KubeApi, policies: Path) -> Gate:
    """Ask it. `policies` is the folder of role node_admission on this host. Raises NotAsked."""
    try:
        refused = _refused(api)
    except (ApiError, Conflict) as error:
        raise NotAsked(str(error)) from error
    try:
        return _compared(api, policies, refused=refused)
    except NotAsked:
        # A gate that is open is so whatever its policies are.
        if not refused:
            return Gate(False, "", "")
        raise


def _compared(api: KubeApi, policies: Path, *, refused: bool) -> Gate:
    try:
        loaded = _loaded(api.text("/metrics", "read its metrics"))
    except (ApiError, Conflict) as error:
        raise NotAsked(str(error)) from error
    wanted = expected_webhooks(policies)
    webhooks = {
        plugin: loaded.get(plugin) == wanted.get(plugin) for plugin in _WEBHOOKS if plugin in loaded or plugin in wanted
    }
    return Gate(refused, loaded.get(_POLICIES, ""), expected_hash(policies), webhooks)


def expected_webhooks(policies: Path) -> dict[str, str]:
    """Of each plugin the hash of the webhooks that it must have loaded; none without teams. Raises NotAsked."""
    path = policies / WEBHOOKS_FILE
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise NotAsked(f"{path}: cannot be read ({error}); run site.yml for this host, which writes it") from error
    pairs = dict(line.partition(" ")[::2] for line in lines)
    if set(pairs) != set(_WEBHOOKS) or not all(map(_HASH.fullmatch, pairs.values())):
        raise NotAsked(f"{path}: holds no hashes of webhooks; run site.yml for this host, which writes it")
    return pairs


def expected_hash(policies: Path) -> str:
    """What the API server must have loaded. Raises NotAsked."""
    path = policies / HASH_FILE
    try:
        found = read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotAsked(f"{path}: cannot be read ({error}); run site.yml for this host, which writes it") from error
    if not _HASH.fullmatch(found):
        raise NotAsked(f"{path}: holds no hash of policies; run site.yml for this host, which writes it")
    return found


def leases(api: KubeApi, names: Sequence[str] = CONTROLLERS, namespace: str = "kube-system") -> dict[str, float]:
    """When the leader of each of these controllers last renewed its Lease; 0 without one. Raises NotAsked."""
    found = {}
    for name in names:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        try:
            lease = api.find(path, f"read the Lease of {name}") or {}
        except (ApiError, Conflict) as error:
            raise NotAsked(str(error)) from error
        try:
            found[name] = parse_rfc3339(lease["spec"]["renewTime"]).timestamp()
        except (KeyError, TypeError, ValueError):
            found[name] = 0.0
    return found


def _refused(api: KubeApi) -> bool:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": GATE_PROBE_NODE}}
    # By apply: a right to create by POST cannot be limited to one name, that to apply can.
    path = f"{node_path(GATE_PROBE_NODE)}?fieldManager={GATE_PROBE_NODE}&dryRun=All"
    try:
        answer = api.apply(path, node, "ask for a node without the taint (dry run)")
    except ApiError as error:
        if error.status == _FORBIDDEN and GATE_POLICY in str(error):
            return True
        raise
    if answer.get("metadata", {}).get("resourceVersion"):
        raise NotAsked(
            f"{api.server}: there is a node {GATE_PROBE_NODE}, so the creation of one cannot be asked for; find "
            "out who made it (the audit log says) and delete it"
        )
    return False


def _loaded(metrics: str) -> dict[str, str]:
    """The hash of each plugin that has read something from the disk."""
    labels = [dict(_LABEL.findall(found[1])) for found in _LOADED.finditer(metrics)]
    return {one["plugin"]: one["hash"] for one in labels if "plugin" in one and _HASH.fullmatch(one.get("hash", ""))}
