"""A pod's network without a pod: a network namespace set up by the CNI configuration that kubelet's runtime would use.

pod.py up: make it and print its address. pod.py who HOST: connect from it to HOST and print the address that HOST saw.
pod.py serve SECONDS: answer, from it and from the host itself, each caller with the address it is seen by.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

NAME = "verify"
PORT = 7777


def up() -> None:
    """Make the namespace and call the bridge plugin as containerd does."""
    conflist = json.loads(Path("/etc/cni/net.d/10-pod-network.conflist").read_text())
    plugin = {**conflist["plugins"][0], "cniVersion": conflist["cniVersion"], "name": conflist["name"]}
    subprocess.run(["ip", "netns", "add", NAME], check=True)
    environment = {
        **os.environ,
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": NAME,
        "CNI_NETNS": f"/run/netns/{NAME}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/usr/lib/cni",
    }
    done = subprocess.run(
        [f"/usr/lib/cni/{plugin['type']}"],
        input=json.dumps(plugin).encode(),
        env=environment,
        capture_output=True,
        check=True,
    )
    print(json.loads(done.stdout)["ips"][0]["address"].split("/")[0])


def enter() -> None:
    """Go into the namespace; iproute2 does it, since Python 3.11 cannot."""
    if "IN_NETNS" not in os.environ:
        os.environ["IN_NETNS"] = "1"
        os.execvp("ip", ["ip", "netns", "exec", NAME, sys.executable, *sys.argv])


def answer(server: socket.socket) -> None:
    """Tell each caller its address, for as long as the process lives."""
    while True:
        connection, (address, _) = server.accept()
        with connection:
            connection.sendall(address.encode())


def serve(seconds: float) -> None:
    """One server in the namespace and one on the host, in a process each, then the end."""
    if "IN_NETNS" not in os.environ and os.fork() == 0:
        enter()
    server = socket.create_server(("0.0.0.0", PORT))
    threading.Thread(target=answer, args=(server,), daemon=True).start()
    threading.Event().wait(seconds)


def who(host: str) -> None:
    """Print the address by which HOST sees the namespace."""
    enter()
    with socket.create_connection((host, PORT), timeout=5) as connection:
        print(connection.recv(64).decode())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["up"]:
            up()
        case ["serve", seconds]:
            serve(float(seconds))
        case ["who", host]:
            who(host)
