"""DCGM 4: nv-hostengine on a Unix socket or a port, and dcgmi, which asks it.

The words of dcgmi's answers are those of NVIDIA/DCGM (dcgmi/Health.cpp, and its listing as operators show it); what the
two say to each other is this stand-in's own: a line of JSON each way.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
from pathlib import Path
from typing import Any

from . import nvml, scenario
from .daemon import end_of_service
from .kernel import Kernel

PORT = 5555
ANSWER_TIMEOUT_S = 60.0
# dcgmReturn_t, as exit codes of a process.
_GENERIC, _NOT_CONNECTED = 253, 235
WATCHES = {"p": "PCIe", "n": "NVLINK", "m": "Memory", "s": "SM", "i": "InfoROM", "t": "Thermal", "w": "Power",
           "d": "Driver", "f": "NvSwitch NF", "x": "NvSwitch F"}  # fmt: skip
_RULE = "+--------+----------------------------------------------------------------------+"


class Engine:
    """What a host engine knows: the GPUs that it found at its start, and the health watches that were set since."""

    def __init__(self, kernel: Kernel, version: str) -> None:
        self.version = version
        self.watches: list[str] = []
        self.gpus: list[dict[str, Any]] = []
        self.paused = False
        try:
            self.gpus = nvml.Nvml().gpus()
        except nvml.NvmlError as error:
            print(f"NVML: error {error.code}: no GPU is known to this host engine", file=sys.stderr, flush=True)
        if kernel.scenario["dcgm_gpus"] is not None:
            self.gpus = self.gpus[: kernel.scenario["dcgm_gpus"]]
        self.health = str(kernel.scenario["dcgm_health"])

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a client asks."""
        if request.get("watch") is not None:
            self.watches = list(request["watch"])
        if request.get("pause") is not None:
            self.paused = bool(request["pause"])
        state = ("version", "gpus", "watches", "health", "paused")
        return {key: getattr(self, key) for key in state}


def hostengine(arguments: list[str], version: str) -> int:
    """Run nv-hostengine in the foreground until it is told to end."""
    options = options_of(arguments, {"-d": "--domain-socket", "-p": "--port", "-b": "--bind-interface"})
    kernel = Kernel(scenario.root())
    if "--version" in options or "-v" in options:
        print(f"Version : {version}")
        return 0
    if kernel.scenario["dcgm_exits"]:
        print("Err: Failed to start DCGM Server: -7", file=sys.stderr)
        return 1
    engine = Engine(kernel, version)
    if engine.gpus:
        kernel.hold("nv-hostengine", os.getpid())
    end = end_of_service()
    handler = _handler(engine, deaf=bool(kernel.scenario["dcgm_deaf"]), end=end)
    path = options.get("--domain-socket")
    server: socketserver.BaseServer
    if path is not None:
        where = Path(path or "/tmp/nv-hostengine")
        where.unlink(missing_ok=True)
        server = socketserver.ThreadingUnixStreamServer(str(where), handler)
        print(f"Started host engine version {version} using socket path: {where}", flush=True)
    else:
        socketserver.ThreadingTCPServer.allow_reuse_address = True
        address = options.get("--bind-interface", "127.0.0.1")
        port = int(options.get("--port", PORT))
        server = socketserver.ThreadingTCPServer(("" if address == "ALL" else address, port), handler)
        print(f"Started host engine version {version} using port number: {port}", flush=True)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        end.wait()
        server.shutdown()
    return 0


def _handler(engine: Engine, deaf: bool, end: threading.Event) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if deaf:
                end.wait()
            elif line:
                self.wfile.write(json.dumps(engine.answer(json.loads(line))).encode() + b"\n")

    return Handler


def ask(host: str, **request: Any) -> dict[str, Any]:
    """Ask the host engine at `unix://PATH`, `ADDRESS` or `ADDRESS:PORT`. Raises OSError when it does not answer."""
    if host.startswith("unix://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(host.removeprefix("unix://"))
    else:
        address, _, port = host.partition(":")
        connection = socket.create_connection((address, int(port or PORT)), timeout=ANSWER_TIMEOUT_S)
    with connection, connection.makefile("rw") as file:
        file.write(json.dumps(request) + "\n")
        file.flush()
        line = file.readline()
    if not line:
        raise ConnectionError("no answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def dcgmi(arguments: list[str], version: str) -> int:
    """Run dcgmi: discovery -l, health -s/-f/-c, profile --pause/--resume, -v."""
    if arguments[:1] == ["--version"]:
        print(f"\ndcgmi  version: {version}\n")
        return 0
    command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    options = options_of(arguments[1:] if command else arguments, {"-l": "--list", "-j": "--json"})
    host = options.pop("--host", "localhost")
    as_json = options.pop("--json", None) is not None
    options.pop("-g", None)
    try:
        match command, sorted(options):
            case "", ["-v"]:
                print(f"Version : {version}\nHostengine build info:\nVersion : {ask(host)['version']}")
            case "discovery", ["--list"] | ["--all", "--list"]:
                _list(ask(host)["gpus"])
            case "health", ["-s"]:
                ask(host, watch=_watched(options["-s"]))
                print("Health monitor systems set successfully.")
            case "health", ["-f"]:
                _show_watches(ask(host)["watches"], as_json)
            case "health", ["-c"]:
                return _check(ask(host), as_json)
            case "profile", ["--pause"] | ["--resume"]:
                ask(host, pause="--pause" in options)
                print(f"Successfully {'paused' if '--pause' in options else 'resumed'} profiling.")
            case _:
                print(f"dcgmi: this stand-in does not know {' '.join(arguments)}", file=sys.stderr)
                return 1
    except OSError:
        print(f"Error: unable to establish a connection to the specified host: {host}")
        print("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
        return _NOT_CONNECTED
    return 0


def options_of(arguments: list[str], long: dict[str, str]) -> dict[str, str]:
    """Options by their long names; the word after one is its value unless it is an option itself."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        options[long.get(word, word)] = value
    return options


def _list(gpus: list[dict[str, Any]]) -> None:
    print(f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} found.")
    print(f"{_RULE}\n| GPU ID | Device Information                                                   |\n{_RULE}")
    for gpu in gpus:
        print(f"| {gpu['index']:<6} | {'Name: ' + gpu['name']:<68} |")
        print(
            f"|        | {'PCI Bus ID: ' + gpu['pci']:<68} |\n|        | {'Device UUID: ' + gpu['uuid']:<68} |\n{_RULE}"
        )
    print("0 NvSwitches found.\n+-----------+\n| Switch ID |\n+-----------+\n+-----------+")
    print("0 ConnectX found.\n+----------+\n| ConnectX |\n+----------+\n+----------+")
    print(f"0 CPUs found.\n{_RULE}\n| CPU ID | {'Device Information':<68} |\n{_RULE}\n{_RULE}")


def _watched(letters: str) -> list[str]:
    return list(WATCHES.values()) if letters == "a" else [WATCHES[letter] for letter in letters if letter in WATCHES]


def _show_watches(watches: list[str], as_json: bool) -> None:
    states = {name: "On" if name in watches else "Off" for name in WATCHES.values()}
    print("Health monitor systems report")
    if as_json:
        print(json.dumps({"body": {name: {"value": state} for name, state in states.items()}}))
        return
    rule = f"+{'-' * 17}+{'-' * 52}+"
    print("\n".join([rule, *(f"| {name:<15} | {state:<50} |" for name, state in states.items()), rule]))


def _check(answer: dict[str, Any], as_json: bool) -> int:
    if not answer["watches"]:
        print("Error: Health watches not enabled. Please enable watches. ")
        return _GENERIC
    if as_json:
        print(
            json.dumps({"body": {"Overall Health": {"value": answer["health"]}}, "header": ["Health Monitor Report"]})
        )
        return 0
    rule = f"+{'-' * 27}+{'-' * 32}+"
    overall = f"| {'Overall Health':<25} | {answer['health']:<30} |"
    print(f"{rule}\n| {'Health Monitor Report':<58} |\n{rule}\n{overall}\n{rule}")
    return 0
