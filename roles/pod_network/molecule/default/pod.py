"""A pod's network without a pod: a network namespace set up by the CNI configuration that kubelet's runtime would use.

pod.py up: make it and print its address. pod.py who HOST...: connect from it to each HOST, once that answers, and print
the address that HOST saw. pod.py serve SECONDS: answer, from it and from the host itself, each caller with the address
it is seen by. pod.py down: remove it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

NAME = "verify"
PORT = 7777
ANSWER_S = 20.0


def up() -> None:
    """Make the namespace and call the bridge plugin as containerd does."""
    subprocess.run(["ip", "netns", "add", NAME], check=True)
    print(json.loads(plugin("ADD"))["ips"][0]["address"].split("/")[0])


def down() -> None:
    """Give the address back, and remove the namespace."""
    plugin("DEL")
    subprocess.run(["ip", "netns", "delete", NAME], check=True)


def plugin(command: str) -> bytes:
    """What the bridge plugin answers to a command of CNI."""
    conflist = json.loads(Path("/etc/cni/net.d/10-pod-network.conflist").read_text())
    settings = {**conflist["plugins"][0], "cniVersion": conflist["cniVersion"], "name": conflist["name"]}
    environment = {
        **os.environ,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": NAME,
        "CNI_NETNS": f"/run/netns/{NAME}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/usr/lib/cni",
    }
    done = subprocess.run(
        [f"/usr/lib/cni/{settings['type']}"],
        input=json.dumps(settings).encode(),
        env=environment,
        capture_output=True,
        check=True,
    )
    return done.stdout


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


def who(hosts: list[str]) -> None:
    """Print the address by which each host sees the namespace."""
    enter()
    for host in hosts:
        with connected(host) as connection:
            print(connection.recv(64).decode())


def connected(host: str) -> socket.socket:
    """A connection to a host that may still be starting its server."""
    until = time.monotonic() + ANSWER_S
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["up"]:
            up()
        case ["down"]:
            down()
        case ["serve", seconds]:
            serve(float(seconds))
        case ["who", *hosts]:
            who(hosts)
