"""A pod, its node and a metadata service in network namespaces of their own, with the rules that role pod_network sets.

Only here: that the kernel obeys them, with an ACCEPT of somebody else's before them.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "roles/pod_network/files/pod_network.py"
CONFIG = {
    "range": "198.19.61.0/24",
    "cidr": "198.19.0.0/17",
    "bridge": "cni0",
    "protocol": 177,
    "manage_routes": True,
    "routing": "static",
    "masquerade": True,
    "no_masquerade": [],
    "ranges": {"gpu-1": "198.19.61.0/24"},
    "addresses": {"gpu-1": "198.18.7.61"},
}
# The metadata service has a second address that is not link-local: so the way to it is open, but for the rule.
# The node has a link-local address itself, as a cache of names would.
HOSTS = """
mount -t tmpfs tmpfs /run
ip link set lo up
ip address add 169.254.20.10/32 dev lo
ip netns add pod
ip link add cni0 type bridge
ip address add 198.19.61.1/24 dev cni0
ip link set cni0 up
ip link add eth0 netns pod type veth peer name pod
ip link set pod master cni0 up
ip -n pod address add 198.19.61.2/24 dev eth0
ip -n pod link set eth0 up
ip -n pod route add default via 198.19.61.1
ip netns add cloud
ip link add eth0 netns cloud type veth peer name cloud
ip address add 198.18.255.1/30 dev cloud
ip link set cloud up
ip route add 169.254.169.254/32 dev cloud
ip -n cloud address add 198.18.255.2/30 dev eth0
ip -n cloud address add 169.254.169.254/32 dev eth0
ip -n cloud link set eth0 up
iptables -A FORWARD -j ACCEPT
ip netns exec cloud python3 -c "$SERVER" &
python3 -c "$SERVER" &
"""
ASK = """
python3 "$PROGRAM" "$CONFIG" >&2
echo "again: $(python3 "$PROGRAM" "$CONFIG")"
for one in 169.254.169.254 198.18.255.2 169.254.20.10; do
  echo "pod to $one: $(ip netns exec pod python3 -c "$CLIENT" $one)"
done
echo "node to 169.254.169.254: $(python3 -c "$CLIENT" 169.254.169.254)"
"""
SERVER = "import http.server as s; s.ThreadingHTTPServer(('', 8080), s.BaseHTTPRequestHandler).serve_forever()"
# Refused while the server starts; a packet that is dropped has no answer at all.
CLIENT = """
import socket, sys, time
for _ in range(100):
    try:
        socket.create_connection((sys.argv[1], 8080), timeout=1)
        print("answers")
        break
    except TimeoutError:
        print("nothing")
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
"""


def answers(config: Path) -> dict[str, str]:
    """Who reaches whom once the program has applied the configuration."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    made = subprocess.run(
        ["unshare", *own, "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", HOSTS + ASK],
        env={**os.environ, "PROGRAM": str(PROGRAM), "CONFIG": str(config), "SERVER": SERVER, "CLIENT": CLIENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    return dict(line.split(": ") for line in made.stdout.splitlines())


@pytest.mark.parametrize(("deny", "metadata"), [(True, "nothing"), (False, "answers")])
def test_the_metadata_service_answers_the_node_and_pods_where_they_may(
    tmp_path: Path, deny: bool, metadata: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "deny_link_local": deny}))
    assert answers(config) == {
        "again": "",
        "pod to 169.254.169.254": metadata,
        "pod to 198.18.255.2": "answers",
        "pod to 169.254.20.10": "answers",
        "node to 169.254.169.254": "answers",
    }
