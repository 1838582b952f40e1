"""What the service knows of the cluster: only what decisions read, changed by the watches alone."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from gpu_burnin.admission.client import Object
from gpu_burnin.admission.decide.facts import is_shut
from gpu_burnin.admission.decide.nodes import boot_id
from gpu_burnin.admission.decide.retest import before_others_until, overdue_at
from gpu_burnin.admission.decide.times import FAR, LONG_AGO, when
from gpu_burnin.admission.service.packed import PackedStore
from gpu_burnin.admission.view import Pod, Rules
from gpu_burnin.api.fabric_proof import FabricProof
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, Proof, State, Use, parse
from gpu_burnin.system.codec import from_json

# Of a GPU resource: the vendors' plugins (nvidia.com/gpu, nvidia.com/mig-1g.10gb, amd.com/gpu, gpu.intel.com/i915).
GPU_RESOURCE = re.compile(r"nvidia\.com/.+|gpu\..+/.+|.+/(gpu|mig)([.\-].+)?")
_ENDED = ("Succeeded", "Failed")
_T = TypeVar("_T")
_MIRROR = "kubernetes.io/config.mirror"
# States in which the admitter's own judgement keeps a node from work; new boots and tests are not.
HELD_BACK = (State.SUSPECT, State.QUARANTINED, State.EXPIRING)


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a NodeAdmission what is asked of all at once. `asked_until`: so long a person asks, None where nobody does.

    `tested_until` is when the test that was asked for should have an answer, None where there is none.
    `shut_by_restore` is as in decide/facts.py. `place` is rack and leaf.
    `fabric` is what tests with other nodes found, of whatever boot; `retested` when the last test that a person asked
    for began, `retest_until` how long such an ask that was not done comes before tests with others, None for none.
    """

    state: State
    code: str
    asked_until: datetime | None
    tested_until: datetime | None
    proofs: Mapping[str, str]
    use: Use | None
    repaired_at: str
    admitted: bool
    expires_at: str
    evidence: Proof
    shut_by_restore: bool = False
    team: str = ""
    model: str = ""
    gpus: int = 0
    place: tuple[str, str] = ("", "")
    has_nics: bool = False
    fabric: FabricProof | None = None
    retested: str = ""
    retest_until: datetime | None = None

    def under_test(self, now: datetime) -> bool:
        """Whether a test was asked for that may have an answer yet."""
        return self.tested_until is not None and now < self.tested_until


class Store(Protocol):
    """What a kind of object is kept in."""

    def put(self, item: Object, *, listed: bool = False) -> str:
        """Keep it; the name to look at again, "" when nothing has changed that matters.

        What is older than what is kept is passed over, but for what is `listed`: an etcd that was restored counts
        its versions from an older one.
        """

    def drop(self, name: str) -> str:
        """Forget it; the name to look at again, or ""."""

    def known(self) -> set[str]:
        """All keys."""


def key_of(item: Object) -> str:
    """Namespace and name."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


class Feed:
    """The sink of a reflector in front of a store: says which names are to be looked at."""

    def __init__(self, store: Store, enqueue: Callable[[str], None]) -> None:
        self._store, self._enqueue = store, enqueue
        self._unseen: set[str] = set()
        self._listing = False

    def begin(self) -> None:
        """See reflector.Sink."""
        self._unseen, self._listing = self._store.known(), True

    def put(self, item: Object) -> None:
        """See reflector.Sink."""
        self._unseen.discard(key_of(item))
        self._notify(self._store.put(item, listed=self._listing))

    def drop(self, item: Object) -> None:
        """See reflector.Sink."""
        self._notify(self._store.drop(key_of(item)))

    def end(self) -> None:
        """See reflector.Sink."""
        for key in self._unseen:
            self._notify(self._store.drop(key))
        self._unseen, self._listing = set(), False

    def _notify(self, name: str) -> None:
        if name:
            self._enqueue(name)


class Nodes(PackedStore):
    """Nodes, trimmed by `trim`, which keeps what decide() reads."""

    def __init__(self, trim: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        super().__init__()
        self._trim = trim
        # Asked of all at once, each few seconds: to read 7,500 Nodes for it would take as long as all else of that.
        self._boots: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See Store."""
        name, version = str(item["metadata"]["name"]), str(item["metadata"]["resourceVersion"])
        if not self._is_news(name, version, listed):
            return ""
        trimmed = dict(self._trim(item))
        trimmed["metadata"] = {k: v for k, v in trimmed["metadata"].items() if k != "resourceVersion"}
        with self._lock:
            fresh, changed = self._keep(name, version, trimmed, listed)
            if fresh:
                self._boots[name] = boot_id(trimmed)
        return name if changed else ""

    def drop(self, name: str) -> str:
        """See Store."""
        with self._lock:
            self._boots.pop(name, None)
            return super().drop(name)

    def get(self, name: str) -> Mapping[str, Any] | None:
        """The trimmed Node, with its version."""
        return self._find(name)

    def boot_of(self, name: str) -> str | None:
        """The boot that kubelet last reported, or ""; None where there is no such Node."""
        return self._boots.get(name)


class Records(PackedStore):
    """NodeAdmissions, with a summary of each."""

    def __init__(self, names: Names, rules: Rules | None = None) -> None:
        super().__init__()
        self._names, self._rules = names, rules or Rules(names=names)
        self.summaries: dict[str, Summary] = {}
        # Counted as they change: whoever reads the numbers of 7,500 nodes would else hold up those who write.
        self._counts: Counter[tuple[State, str]] = Counter()
        self._asked: set[str] = set()
        self._held_back: dict[State, set[str]] = {state: set() for state in HELD_BACK}
        self._lock = threading.Lock()
        self.addresses: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See Store."""
        metadata = item["metadata"]
        name, version = str(metadata["name"]), str(metadata["resourceVersion"])
        if not self._is_news(name, version, listed):
            return ""
        spec, status = item.get("spec") or {}, item.get("status") or {}
        document = {"metadata": {"name": name, "uid": metadata.get("uid", "")}, "spec": spec, "status": status}
        with self._lock:
            fresh, changed = self._keep(name, version, document, listed)
            if fresh:
                self._index(name, _summary(spec, status, self._rules))
                identity = spec.get("identity") or {}
                self.addresses[name] = tuple(identity.get("addresses") or ()), tuple(identity.get("dnsNames") or ())
        return name if changed else ""

    def drop(self, name: str) -> str:
        """See Store."""
        with self._lock:
            self._index(name, None)
            self.addresses.pop(name, None)
            return super().drop(name)

    def get(self, name: str) -> NodeAdmission | None:
        """One record. Raises RecordError when it cannot be read."""
        found = self._find(name)
        return parse(found) if found is not None else None

    def held_back(self, *states: State) -> set[str]:
        """Nodes in these states that had been let in, of which no person asks anything now.

        Nor are those meant that a restore of etcd has closed, whatever is said of them besides a fault that has leave.
        """
        now, found = datetime.now(UTC), (self._held_back[state] for state in states)
        return {name for name in set().union(*found) if not self._excused(name, now)}

    def under_test(self) -> set[str]:
        """Nodes that were asked for a test, and may answer yet: one that never does takes no place for ever."""
        now = datetime.now(UTC)
        asked = ((name, self.summaries.get(name)) for name in self._asked)
        return {name for name, summary in asked if summary is not None and summary.under_test(now)}

    def _excused(self, name: str, now: datetime) -> bool:
        summary = self.summaries.get(name)
        if summary is None:
            return False
        return summary.shut_by_restore or (summary.asked_until is not None and now < summary.asked_until)

    def _index(self, name: str, summary: Summary | None) -> None:
        old = self.summaries.pop(name, None)
        if old is not None:
            self._counts[old.state, old.code] -= 1
            if not self._counts[old.state, old.code]:
                del self._counts[old.state, old.code]
        # Sets that others read are replaced, not changed.
        if old is not None and old.state in HELD_BACK:
            self._held_back[old.state] = self._held_back[old.state] - {name}
        is_asked = summary is not None and summary.tested_until is not None
        if (name in self._asked) != is_asked:
            self._asked = self._asked ^ {name}
        if summary is not None:
            self.summaries[name] = summary
            self._counts[summary.state, summary.code] += 1
            if summary.state in HELD_BACK and summary.admitted:
                self._held_back[summary.state] = self._held_back[summary.state] | {name}

    def counts(self) -> Counter[tuple[State, str]]:
        """How many there are of each state and code."""
        with self._lock:
            return self._counts.copy()

    def all_summaries(self) -> list[tuple[str, Summary]]:
        """Name and summary of each, as they are now."""
        return list(self.summaries.items())


def _summary(spec: Mapping[str, Any], status: Mapping[str, Any], rules: Rules) -> Summary:
    state, retest = _part(State, status.get("state")) or State.NEW, spec.get("retest") or {}
    asks = (spec[ask] for ask in ("hold", "quarantine", "repair") if spec.get(ask))
    restored = str((spec.get("restored") or {}).get("since") or "")
    changes, hardware, place = status.get("transitions") or [], spec.get("hardware") or {}, spec.get("place") or {}
    repaired = [c.get("at", "") for c in changes if isinstance(c, dict) and c.get("from") == State.REPAIRING]
    return Summary(
        state=state,
        code=sys.intern(str(status.get("code") or "")),
        asked_until=max((when(str(ask.get("until") or "")) or FAR for ask in asks), default=None),
        tested_until=_tested_until(status.get("request"), rules),
        proofs={sys.intern(str(k)): str(v) for k, v in (status.get("proofs") or {}).items()},
        use=_part(Use, status.get("use")),
        repaired_at=max(repaired, default=""),
        admitted=bool(status.get("accepted")),
        expires_at=str((status.get("accepted") or {}).get("expiresAt") or ""),
        evidence=_part(Proof, spec.get("evidence")) or Proof(),
        shut_by_restore=is_shut(restored, str(status.get("confirmed") or ""), state),
        team=sys.intern(str(status.get("team") or "")),
        model=sys.intern(str(hardware.get("model") or "")),
        gpus=int(hardware.get("gpus") or 0),
        place=(sys.intern(str(place.get("rack") or "")), sys.intern(str(place.get("leaf") or ""))),
        has_nics=bool(spec.get("fabric")),
        fabric=_part(FabricProof, status.get("fabric")),
        retested=str(status.get("retestBegan") or status.get("retested") or ""),
        retest_until=before_others_until(retest) if retest and retest.get("since") != status.get("retested") else None,
    )


def _tested_until(request: Mapping[str, Any] | None, rules: Rules) -> datetime | None:
    if not request:
        return None
    return overdue_at(when(str(request.get("since") or "")) or LONG_AGO, str(request.get("level") or ""), rules)


def _part(kind: type[_T], document: object) -> _T | None:
    try:
        return from_json(kind, document, tolerant=True) if document else None
    except ValueError:
        return None


class Pods:
    """Pods that have a node, but for those of DaemonSets without GPUs, which no decision asks for."""

    def __init__(self, hold_until: str, leave: str = "") -> None:
        self._hold_until, self._leave = hold_until, leave
        self._by_key: dict[str, tuple[str, Pod]] = {}
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._lock = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See Store. The name is the node's."""
        key, pod = key_of(item), pod_of(item, self._hold_until, self._leave)
        node = sys.intern(str(item["spec"].get("nodeName") or ""))
        if not node or (pod.daemon and not pod.gpus):
            return self.drop(key)
        with self._lock:
            old = self._by_key.get(key)
            if old == (node, pod):
                return ""
            if old is not None and old[0] != node:
                self._forget(key, old[0])
            self._by_key[key] = (node, pod)
            self._by_node.setdefault(node, {})[key] = pod
        return node

    def drop(self, name: str) -> str:
        """See Store."""
        with self._lock:
            old = self._by_key.pop(name, None)
            if old is None:
                return ""
            self._forget(name, old[0])
            return old[0]

    def known(self) -> set[str]:
        """See Store."""
        with self._lock:
            return set(self._by_key)

    def on(self, node: str) -> tuple[Pod, ...]:
        """The pods of one node."""
        with self._lock:
            return tuple(self._by_node.get(node, {}).values())

    def uids(self) -> set[str]:
        """The UIDs of all."""
        with self._lock:
            return {pod.uid for _, pod in self._by_key.values()}

    def idle(self, node: str) -> bool:
        """Whether no pod on it that has not ended has GPUs."""
        return not any(pod.gpus and not pod.ended for pod in self.on(node))

    def __len__(self) -> int:
        return len(self._by_key)

    def _forget(self, key: str, node: str) -> None:
        pods = self._by_node.get(node, {})
        pods.pop(key, None)
        if not pods:
            self._by_node.pop(node, None)


def pod_of(item: Object, hold_until: str, leave: str = "") -> Pod:
    """What decisions read of a pod, by the names of its annotations."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    owner = next((o for o in owners if o.get("controller")), owners[0] if owners else {})
    annotations = metadata.get("annotations") or {}
    return Pod(
        namespace=sys.intern(str(metadata.get("namespace", ""))),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        gpus=_gpus(spec),
        daemon=owner.get("kind") == "DaemonSet" or _MIRROR in annotations,
        ended=status.get("phase") in _ENDED,
        leaving="deletionTimestamp" in metadata,
        hold_until=str(annotations.get(hold_until, "")),
        owner=sys.intern(f"{owner['kind']}/{owner['name']}") if owner.get("kind") and owner.get("name") else "",
        leave=str(annotations.get(leave, "")),
    )


def _gpus(spec: Mapping[str, Any]) -> int:
    """GPUs (or shares of one) that the pod has; a resource claim, whose device is not named here, counts as one."""
    containers = _requested(spec.get("containers") or [])
    # Init containers run before the others, one after the other; those that restart stay.
    most = max((_requested([c]) for c in spec.get("initContainers") or []), default=0)
    return max(containers, most, 1 if spec.get("resourceClaims") else 0)


def _requested(containers: Iterable[Mapping[str, Any]]) -> int:
    return sum(_quantities(container.get("resources") or {}) for container in containers)


def _quantities(resources: Mapping[str, Any]) -> int:
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return sum(_count(value) for name, value in asked.items() if GPU_RESOURCE.fullmatch(name))


def _count(quantity: object) -> int:
    # Extended resources are whole; what is not a plain number is at least one.
    text = str(quantity)
    return int(text) if text.isdigit() else 1
