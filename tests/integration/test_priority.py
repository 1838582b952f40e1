"""Who is served when many ask at once: admission, nodes and monitoring have places that nobody else can take.

A real API server with few places, and with little room for its audit log. Compared are its own counts of one run.
Only here: requests of many at once wait for the places of a real API server, and its log goes round.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.integration.gate import NODES, kubelet
from tests.integration.kube import NO_BINARIES, Client, Server, api_server, binaries, until

LEVELS = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
SCHEMAS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
EVENTS = "/api/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
ASKING, THREADS, OBJECTS, OBJECT_BYTES = 6, 48, 150, 100_000
AUDIT_FILES, AUDIT_MIB = 2, 1
QUEUED = re.compile(
    r'^apiserver_flowcontrol_current_inqueue_requests\{flow_schema="[^"]+",priority_level="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)
WAITED = re.compile(
    r'^apiserver_flowcontrol_request_wait_duration_seconds_sum\{execute="true",flow_schema="([^"]+)",'
    r'priority_level="[^"]+"\} (\S+)$',
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with 12 places for reading, 6 for writing, and an audit log that is soon full.

    A request waits for a place for a quarter of the timeout at most, and keeps it as long as that.
    """
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    places = ("--max-requests-inflight=12", "--max-mutating-requests-inflight=6", "--request-timeout=5m")
    audit = (f"--audit-log-maxbackup={AUDIT_FILES}", f"--audit-log-maxsize={AUDIT_MIB}")
    with api_server(tmp_path_factory.mktemp("small"), *places, *audit) as running:
        yield running


@pytest.fixture(scope="module")
def crowded(small: Server) -> Server:
    """A server with few places, where what is listed is large."""
    root = small.client("root", ["system:masters"])
    # The controller manager makes it, and does not run here.
    root.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    for number in range(OBJECTS):
        body = {"metadata": {"name": f"large-{number}"}, "data": {"text": "x" * OBJECT_BYTES}}
        assert root.request("POST", CONFIG_MAPS, body).status == 201
    return small


def level_of(server: Server, client: Client, method: str, path: str, body: object = None) -> str:
    """The name of the priority level that a request was served at."""
    levels = server.client("root", ["system:masters"]).request("GET", LEVELS).body["items"]
    names = {level["metadata"]["uid"]: str(level["metadata"]["name"]) for level in levels}
    return names[client.request(method, path, body).priority]


@pytest.mark.parametrize(
    ("user", "path"),
    [
        ("muster:admitter", NODES),
        ("muster:provisioner", NODES),
        ("muster:gate-probe", "/metrics"),
        ("muster:prometheus", "/metrics"),
    ],
)
def test_what_lets_nodes_in_and_sees_how_it_goes_has_places_of_its_own(crowded: Server, user: str, path: str) -> None:
    assert level_of(crowded, crowded.client(user), "GET", path) == "muster-admission"


def test_nodes_have_those_of_kubernetes_and_people_the_common_ones(crowded: Server) -> None:
    node = kubelet(crowded, "gpu-900")
    lease = {"metadata": {"name": "gpu-900"}, "spec": {"holderIdentity": "gpu-900", "leaseDurationSeconds": 40}}
    assert level_of(crowded, node, "POST", LEASES, lease) == "node-high"
    assert level_of(crowded, crowded.client("admin", ["muster:admins"]), "GET", NODES) == "global-default"


def test_without_its_schema_the_admitter_stands_in_the_common_queue(crowded: Server) -> None:
    root = crowded.client("root", ["system:masters"])
    schema = root.request("GET", f"{SCHEMAS}/muster-admission").body
    assert root.request("DELETE", f"{SCHEMAS}/muster-admission").status == 200
    admitter = crowded.client("muster:admitter")
    until("the loss to count", lambda: level_of(crowded, admitter, "GET", NODES) == "global-default")
    kept = {key: schema[key] for key in ("apiVersion", "kind", "spec")}
    assert root.request("POST", SCHEMAS, {**kept, "metadata": {"name": "muster-admission"}}).status == 201
    until("it to count again", lambda: level_of(crowded, admitter, "GET", NODES) == "muster-admission")


@contextmanager
def places_taken(server: Server) -> Iterator[None]:
    """Admins ask for more than a connection holds and read none of it: each answer keeps its place until the end."""
    clients = [server.client(f"admin-{number}", ["muster:admins"]) for number in range(ASKING)]
    with ExitStack() as open_ones:
        for number in range(THREADS):
            connection = open_ones.enter_context(closing(unread(clients[number % ASKING])))
            connection.request("GET", CONFIG_MAPS)
        until("a queue", lambda: in_queue(server, "global-default") > 0, 60)
        yield


def unread(client: Client) -> http.client.HTTPSConnection:
    """A connection that holds little of what is not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", client.port))
    connection = http.client.HTTPSConnection("127.0.0.1", client.port, context=client.context, timeout=60)
    connection.sock = client.context.wrap_socket(raw, server_hostname="127.0.0.1")
    return connection


def in_queue(server: Server, level: str) -> float:
    """How many requests of a priority level wait for a place."""
    return total(server, QUEUED, level)


def waited_s(server: Server, schema: str) -> float:
    """How long all served requests of a flow schema have waited for a place."""
    return total(server, WAITED, schema)


def total(server: Server, series: re.Pattern[str], name: str) -> float:
    """The sum of those series of the server's own numbers whose first group is this name."""
    text = server.client("muster:prometheus").request("GET", "/metrics").message
    return sum(float(value) for named, value in series.findall(text) if named == name)


def test_while_others_hold_all_common_places_admission_and_heartbeats_are_served(crowded: Server) -> None:
    admitter, node = crowded.client("muster:admitter"), kubelet(crowded, "gpu-901")
    lease = {"metadata": {"name": "gpu-901"}, "spec": {"holderIdentity": "gpu-901", "leaseDurationSeconds": 40}}
    with places_taken(crowded):
        made = node.request("POST", LEASES, lease)
        assert made.status == 201, made.message
        for _ in range(40):
            assert admitter.request("GET", f"{NODES}?limit=1").status == 200
            renewed = node.request("PUT", f"{LEASES}/gpu-901", {**lease, "metadata": made.body["metadata"]})
            assert renewed.status == 200, renewed.message
            made = renewed
        assert in_queue(crowded, "global-default") > 0, "nobody waited in the common queue any more"
    admin = crowded.client("admin", ["muster:admins"])
    until("a place for admins", lambda: admin.request("GET", NODES).status == 200)


def an_event(node: str) -> dict[str, object]:
    return {
        "metadata": {"generateName": f"{node}.", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node, "namespace": "default"},
    }


def events(client: Client, node: str, go_on: Callable[[int], bool]) -> list[float]:
    """Write events on one connection while that says so; the seconds that each took."""
    took_s: list[float] = []
    connection = http.client.HTTPSConnection("127.0.0.1", client.port, context=client.context, timeout=60)
    try:
        while go_on(len(took_s)):
            began_s = time.monotonic()
            connection.request("POST", EVENTS, json.dumps(an_event(node)), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
            answer.read()
            took_s.append(time.monotonic() - began_s)
    finally:
        connection.close()
    return took_s


def test_a_node_that_storms_with_events_waits_in_its_own_queues(crowded: Server) -> None:
    storming, other = kubelet(crowded, "gpu-902"), kubelet(crowded, "gpu-903")
    assert level_of(crowded, other, "POST", EVENTS, an_event("gpu-903")) == "system"
    over = threading.Event()
    with ThreadPoolExecutor(THREADS) as threads:
        try:
            running = [
                threads.submit(events, storming, "gpu-902", lambda done: not over.is_set()) for _ in range(THREADS)
            ]
            before_s = waited_s(crowded, "system-nodes")
            until("a queue", lambda: waited_s(crowded, "system-nodes") > before_s + 1, 60)
            others_s = events(other, "gpu-903", lambda done: done < 60)
        finally:
            over.set()
        storms_s = [seconds for thread in running for seconds in thread.result()]
    mine_s, theirs_s = statistics.median(others_s), statistics.median(storms_s)
    print(f"an event took {theirs_s * 1000:.0f} ms for the node that storms, {mine_s * 1000:.0f} ms for another one")
    assert mine_s < theirs_s / 2


def test_the_log_takes_no_more_than_its_files_at_their_size(small: Server) -> None:
    root = small.client("root", ["system:masters"])
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    # Rights are told with the request; a quarter of a file each.
    names = [f"{number:04}-{'x' * 250}" for number in range(1000)]
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": names, "verbs": ["get"]}]

    def write(name: str) -> None:
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules}
        reply = root.request("POST", f"{path}?dryRun=All", {**role, "metadata": {"name": name}})
        assert reply.status == 201, reply

    def files() -> list[Path]:
        return sorted(small.directory.glob("audit*.log"))

    def is_audited(name: str) -> bool:
        return any(f'"{name}"' in path.read_text() for path in files())

    write("the-first")
    until("the first entry", lambda: is_audited("the-first"), 20)
    for number in range(6 * (AUDIT_FILES + 2)):
        write(f"large-{number}")
    write("the-last")
    until("the last entry", lambda: is_audited("the-last"), 20)
    until("the removal of older files", lambda: len(files()) == AUDIT_FILES + 1 and not is_audited("the-first"), 30)
    assert all(path.stat().st_size <= AUDIT_MIB * 1024**2 for path in files())
