"""dcgm-exporter: answers /metrics with the fields of its counter file, for the GPUs that the host engine knows.

Values are those of NVML at that moment; XIDs, which DCGM has from NVML's events, those of the host's kernel log.
"""

from __future__ import annotations

import http.server
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import dcgm, nvml, scenario

# Of dcgm_structs.h, dcgmFabricManagerStatus: those of NVML, and one for a registration that has failed.
_COMPLETED, _FAILED = 3, 4
_NONE: dict[str, int] = {}


def _health(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda gpu: gpu.get("health", _NONE).get(name)


# What the stand-in can tell; other fields of DCGM are 0, and a name that is none of DCGM's ends the program. A GPU that
# does not support one has no line for it.
_VALUES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "DCGM_FI_DEV_GPU_TEMP": lambda gpu: gpu["temperature_c"],
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": lambda gpu: gpu["power_limit_mw"] / 1000,
    "DCGM_FI_DEV_XID_ERRORS": lambda gpu: gpu.get("xid", 0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _health("clocks_event_reasons"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _health("ecc_uncorrected"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": _health("remap_pending"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": _health("remap_failure"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": _health("remapped_uncorrected"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _health("nvlink_recoveries"),
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": _health("nvlink_failed_recoveries"),
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": lambda gpu: (
        _FAILED if gpu["fabric_state"] == _COMPLETED and gpu["fabric_status"] else gpu["fabric_state"]
    ),
}
_KERNEL_LOG = "run/lab/kmsg"
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)[^)]*\): (\d+)")
# NVML's library reads the scenario again each time it is opened, and is no friend of two threads then.
_READING = threading.Lock()
_FIELD_STARTS = ("DCGM_FI_DEV_", "DCGM_FI_PROF_", "DCGM_FI_DRIVER_VERSION", "DCGM_EXP_")
_TYPES = ("gauge", "counter", "label", "histogram", "summary")


class CounterFileError(Exception):
    """The counter file makes no sense; the message says where."""


def main(arguments: list[str], version: str) -> int:
    """Run the exporter; 1 when its counter file or the host engine is no good."""
    options = dcgm.options_of(arguments, {"-f": "--collectors", "-a": "--address", "-r": "--remote-hostengine-info"})
    if "--version" in options or "-v" in options:
        print(f"DCGM Exporter version {version}")
        return 0
    address, _, port = options.get("--address", ":9400").rpartition(":")
    engine = options.get("--remote-hostengine-info", "")
    try:
        fields = counters(Path(options.get("--collectors", "/etc/dcgm-exporter/default-counters.csv")))
        _gpus(engine)
    except (OSError, CounterFileError, nvml.NvmlError) as error:
        print(f'level=error msg="{error}"', file=sys.stderr)
        return 1
    http.server.ThreadingHTTPServer((address, int(port)), _handler(fields, engine)).serve_forever()
    return 0


def counters(path: Path) -> list[tuple[str, str, str]]:
    """Field, Prometheus type and help of each line. Raises CounterFileError, OSError."""
    fields: list[tuple[str, str, str]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = [word.strip() for word in line.split(",", 2)]
        if not line.strip() or line.startswith("#"):
            continue
        if len(words) != 3:
            raise CounterFileError(f"{path}:{number}: malformed CSV record, failed to parse line: {line}")
        if not words[0].startswith(_FIELD_STARTS):
            raise CounterFileError(f"{path}:{number}: could not find DCGM field; err: {words[0]}")
        if words[1] not in _TYPES:
            raise CounterFileError(f"{path}:{number}: could not find Prometheus metric type; err: {words[1]}")
        fields.append((words[0], words[1], words[2]))
    return fields


def metrics(fields: list[tuple[str, str, str]], gpus: list[dict[str, Any]]) -> str:
    """The text of /metrics."""
    lines: list[str] = []
    for name, kind, explained in fields:
        lines += [f"# HELP {name} {explained}", f"# TYPE {name} {kind}"]
        for gpu in gpus:
            labels = {
                "gpu": gpu["index"],
                "UUID": gpu["uuid"],
                "pci_bus_id": gpu["pci"],
                "device": f"nvidia{gpu['index']}",
                "modelName": gpu["name"],
            }
            text = ",".join(f'{key}="{value}"' for key, value in labels.items())
            value = _VALUES[name](gpu) if name in _VALUES else 0
            if value is not None:
                lines.append(f"{name}{{{text}}} {value}")
    return "".join(f"{line}\n" for line in lines)


def xids(log: str) -> dict[str, int]:
    """The newest XID of each GPU that a kernel log names, by its address on the bus."""
    return {address.lower(): int(code) for address, code in _XID.findall(log)}


def _gpus(engine: str) -> list[dict[str, Any]]:
    """The GPUs that a host engine knows and NVML shows; without an engine, all of NVML. Raises OSError, NvmlError."""
    known = {gpu["uuid"] for gpu in dcgm.ask(engine)["gpus"]} if engine else None
    if known == set():
        return []
    path = scenario.root() / _KERNEL_LOG
    newest = xids(path.read_text()) if path.exists() else {}
    with _READING:
        library = nvml.Nvml()
        gpus = [gpu for gpu in library.gpus() if known is None or gpu["uuid"] in known]
        for gpu in gpus:
            gpu["health"] = library.health(gpu["index"])
    for gpu in gpus:
        gpu["xid"] = next((code for address, code in newest.items() if gpu["pci"].lower().startswith(address, 4)), 0)
    return gpus


def _handler(fields: list[tuple[str, str, str]], engine: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                answer, body = (200, metrics(fields, _gpus(engine))) if self.path == "/metrics" else (404, "")
            except (OSError, nvml.NvmlError) as error:
                answer, body = 500, f"host engine: {error}\n"
            self.send_response(answer)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the log is for what goes wrong."""

    return Handler
