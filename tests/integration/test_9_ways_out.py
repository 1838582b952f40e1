"""Ways out of a team's pod over the network, each tried from a pod of team vision on a node of the lab.

After the count of the firewall (test_9_two_networks.py): it drops some of these, and would have them in its list.

Only here: kubelets, the metadata service and the control plane's ports, as a pod reaches them; and an exec in a real
pod in what `muster who` reads from the API servers' hosts.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import pytest

from tests.lab import wall

from .fleet import API_SERVERS, Fleet, wait_until
from .lab_jobs import STORE

NOBODY, FORBIDDEN, CLOSED, NO_ANSWER = "401", "403", "ConnectionRefusedError", "TimeoutError"
# The server ends it for want of a client certificate: in the handshake, or, by TLS 1.3, at the first request.
NO_CERTIFICATE = "no certificate"
API = "https://kubernetes.default.svc.cluster.local/api/v1"
# What a pod's program answers for each way: an HTTP status, or how the connection ended.
TRY = """
import json, ssl, time, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
TOKEN = open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()
ANY = ssl._create_unverified_context()
def tried(way):
    # A Service that is seconds old may not be everywhere yet.
    for _ in range(10):
        ended = once(way)
        if ended == way["ends"] or way["ends"] != "200":
            break
        time.sleep(1)
    return ended
def once(way):
    request = urllib.request.Request(way["url"], method=way["method"])
    if way["token"]:
        request.add_header("Authorization", "Bearer " + TOKEN)
    try:
        with urllib.request.urlopen(request, timeout=3, context=ANY) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except urllib.error.URLError as error:
        ended = error.reason
    except OSError as error:
        ended = error
    no_certificate = isinstance(ended, (ssl.SSLError, ConnectionResetError, BrokenPipeError))
    return "no certificate" if no_certificate else type(ended).__name__
with ThreadPoolExecutor(len(WAYS)) as pool:
    print(json.dumps(list(pool.map(tried, WAYS))))
"""
# A metadata service one hop from the node, which has an address besides that is not link-local.
CLOUD, ADDRESS, METADATA = "198.18.255.1/30", "198.18.255.2", "169.254.169.254"
CLOUD_UP = f"""set -e
mkdir -p /run/lab-cloud
echo credentials > /run/lab-cloud/index.html
ip netns add lab-cloud
ip link add eth0 netns lab-cloud type veth peer name lab-cloud
ip address add {CLOUD} dev lab-cloud
ip link set lab-cloud up
ip route add {METADATA}/32 dev lab-cloud
ip -n lab-cloud address add {ADDRESS}/30 dev eth0
ip -n lab-cloud address add {METADATA}/32 dev eth0
ip -n lab-cloud link set eth0 up
systemd-run --quiet --collect --unit=lab-cloud \
  ip netns exec lab-cloud python3 -m http.server 80 --directory /run/lab-cloud
"""
CLOUD_DOWN = "systemctl stop lab-cloud; ip netns delete lab-cloud; rm -rf /run/lab-cloud"
ASK_METADATA = f"python3 -c \"import urllib.request as u; print(u.urlopen('http://{METADATA}/', timeout=3).read())\""


@dataclass(frozen=True)
class Way:
    """A request from the pod, {node} and others in its address, and how it has to end."""

    name: str
    url: str
    ends: str
    token: bool = False
    method: str = "GET"


def _kubelets() -> Iterator[Way]:
    for host, path in (("{node}", "its node's kubelet"), ("{other}", "another node's kubelet")):
        yield Way(f"pods of {path}", f"https://{host}:10250/pods", NOBODY)
        yield Way(f"pods of {path}, with a token", f"https://{host}:10250/pods", FORBIDDEN, token=True)
        run = f"https://{host}:10250/exec/vision/store/store?command=id&output=1"
        yield Way(f"exec by {path}", run, NOBODY, method="POST")
        yield Way(f"exec by {path}, with a token", run, FORBIDDEN, token=True, method="POST")
        yield Way(f"the port without TLS of {path}", f"http://{host}:10255/pods", CLOSED)


OF_THE_API = (
    Way("all secrets, without a token", f"{API}/secrets", NOBODY),
    Way("all secrets", f"{API}/secrets", FORBIDDEN, token=True),
    Way("the own namespace's secrets", f"{API}/namespaces/vision/secrets", FORBIDDEN, token=True),
    Way("a kubelet through the API", f"{API}/nodes/{{node}}/proxy/pods", FORBIDDEN, token=True),
    Way(
        "a token of the job controller",
        f"{API}/namespaces/kube-system/serviceaccounts/job-controller/token",
        FORBIDDEN,
        token=True,
        method="POST",
    ),
)
WAYS = (
    *_kubelets(),
    *OF_THE_API,
    Way("the metadata service", f"http://{METADATA}/", NO_ANSWER),
    Way("the node's numbers", "https://{node}:9443/node", NO_CERTIFICATE),
    Way("kube-proxy's numbers", "http://{node}:10249/metrics", CLOSED),
    Way("kubelet's health", "http://{node}:10248/healthz", CLOSED),
    Way("the first port of Services on nodes", "http://{node}:30000/", CLOSED),
    Way("etcd", "https://{etcd}:2379/version", NO_ANSWER),
    Way("the etcd of events", "https://{events}:2379/version", NO_ANSWER),
    Way("the admitter's numbers", "http://{api}:10270/metrics", NO_ANSWER),
    Way("the API server's host's numbers", "https://{api}:9443/node", NO_ANSWER),
)
# Open by design, and so said on docs/operations/isolation.md.
OPEN = (
    Way("another team's Service by its name", "http://store.audio.svc.cluster.local:8080/x", "200"),
    Way("what the metadata service's host has beside it", f"http://{ADDRESS}/", "200"),
)


@dataclass(frozen=True)
class Tried:
    """How each way ended, by its name, from a pod on `node`; its address, and the mark of its request."""

    node: str
    ended: Mapping[str, str]
    marks: Mapping[str, str]


@pytest.fixture(scope="module")
def tried(fleet: Fleet) -> Iterator[Tried]:
    """Each team's pod serves by its name; vision's tries the ways, its node being one of a cloud."""
    for user, team in (("user-alice", "vision"), ("user-bob", "audio")):
        made = fleet.kubectl("apply", "-n", team, "-f", "-", stdin=STORE, identity=user)
        assert made.rc == 0, made.err
    try:
        for team in ("vision", "audio"):
            wait_until(f"{team}'s pod", lambda: ready(fleet, team), timeout_s=60)  # noqa: B023
        node = str(fleet.get("pod", "-n", "vision", "store")["spec"]["nodeName"])
        fleet.must(node, CLOUD_UP)
        try:
            # It answers the node, so that nothing but the rule keeps it from the pod.
            wait_until("the metadata service", lambda: "credentials" in fleet.ssh(node, ASK_METADATA).out, timeout_s=20)
            yield _try_all(fleet, node)
        finally:
            fleet.ssh(node, CLOUD_DOWN)
    finally:
        for team in ("vision", "audio"):
            fleet.kubectl("delete", "pods,services", "--all", "-n", team, "--wait=true", "--timeout=60s")


def ready(fleet: Fleet, team: str) -> bool:
    """Whether the pod runs, and the Service leads to it."""
    running = bool(fleet.get("pod", "-n", team, "store")["status"]["phase"] == "Running")
    slices = fleet.get("endpointslices", "-n", team, "-l", "kubernetes.io/service-name=store")["items"]
    return running and any(one["conditions"]["ready"] for item in slices for one in item.get("endpoints") or ())


def _try_all(fleet: Fleet, node: str) -> Tried:
    places = {
        "node": fleet.addresses[node],
        "other": fleet.addresses["gpu-1" if node == "system-1" else "system-1"],
        "etcd": fleet.addresses["etcd-1"],
        "events": fleet.addresses["etcd-events-1"],
        "api": fleet.addresses["api-1"],
    }
    marks = {way.name: f"lab-way={number}-" for number, way in enumerate(OF_THE_API)}
    ways = [
        replace(way, url=way.url.format(**(places | {"node": node} if way in OF_THE_API else places)))
        for way in (*WAYS, *OPEN)
    ]
    asked = [
        asdict(replace(way, url=f"{way.url}?{marks[way.name]}")) if way.name in marks else asdict(way) for way in ways
    ]
    script = f"WAYS = {asked!r}\n{TRY}"
    done = fleet.kubectl(
        "exec", "-i", "-n", "vision", "store", "--", "python3", "-", stdin=script, identity="user-alice"
    )
    assert done.rc == 0, done.err
    return Tried(node, dict(zip((way.name for way in ways), json.loads(done.out), strict=True)), marks)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_pod_gets_nothing(tried: Tried, way: Way) -> None:
    assert tried.ended[way.name] == way.ends


@pytest.mark.parametrize("way", OPEN, ids=lambda way: way.name)
def test_what_is_open_is_open(tried: Tried, way: Way) -> None:
    """So the pod's network works, and the others are refused where this page says that they are."""
    assert tried.ended[way.name] == way.ends


@pytest.mark.parametrize("way", OF_THE_API, ids=lambda way: way.name)
def test_what_reaches_the_api_is_in_the_audit_log(fleet: Fleet, tried: Tried, way: Way) -> None:
    find = f"grep --no-filename '{tried.marks[way.name]}' /var/log/kubernetes/audit*.log || true"
    lines = [line for host in API_SERVERS for line in fleet.must(host, find).splitlines()]
    entry = json.loads(lines[-1])
    assert entry["responseStatus"]["code"] == int(way.ends)
    assert entry["user"].get("username", "") == ("system:serviceaccount:vision:default" if way.token else "")


def test_the_firewall_dropped_what_was_meant_for_the_control_plane(fleet: Fleet, tried: Tried) -> None:
    _, dropped = wall.traffic(fleet.lab)
    node = fleet.addresses[tried.node]
    ports = {("etcd-1", 2379), ("etcd-events-1", 2379), ("api-1", 10270), ("api-1", 9443)}
    assert {f"{node} -> {fleet.addresses[host]}:{port}" for host, port in ports} <= set(dropped)


def test_without_a_firewall_etcd_asks_for_a_certificate_and_the_admitter_is_not_there(fleet: Fleet) -> None:
    """From this machine, which stands in the control plane's network."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    for host in ("etcd-1", "etcd-events-1"):
        with (
            socket.create_connection((fleet.addresses[host], 2379), timeout=5) as plain,
            pytest.raises((ssl.SSLError, ConnectionResetError)),
            anybody.wrap_socket(plain) as connection,
        ):
            connection.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((fleet.addresses["api-1"], 10270), timeout=5)


def test_muster_who_tells_the_exec_from_the_hosts_logs(fleet: Fleet, tried: Tried) -> None:
    done = fleet.muster("who", "vision", "--since", "10m", "--json")
    assert done.rc == 0, done.err
    told = json.loads(done.out)
    assert sorted(told["logs"]) == sorted(API_SERVERS), told["notes"]
    mine = [
        one for one in told["did"] if one["who"] == "alice" and one["did"].startswith("exec in pods/store: python3")
    ]
    assert mine and all(one["refused"] is None for one in mine), told["did"]
    refused = [one["refused"] for one in told["did"] if one["who"] == "system:serviceaccount:vision:default"]
    assert any("secrets" in why for why in refused if why), "the pod's own token too"
    text = fleet.muster("who", "vision", "--since", "10m")
    assert "exec in pods/store" in " ".join(text.out.split()), text.out + text.err
