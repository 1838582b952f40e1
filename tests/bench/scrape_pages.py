"""The numbers of a fleet on loopback: pages of exporters for any number of nodes, each answer with other values.

Ours has what node_exporter shows with the role's collectors on this machine, and beside it as many series as
files/series.yaml allows a node of 8 GPUs. The default has what node_exporter shows with its own collectors, its
processors made 192, the same textfiles, and 25 fields of each GPU: about as many as NVIDIA's list has.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CPUS = 192
GPUS = 8
DEFAULT_GPU_FIELDS = 25
# Answers with other values that take turns.
TURNS = 4
# Stands for the node in a page.
NODE = "@node@"
_LINE = re.compile(r"^([a-zA-Z_:][^ {]*)(\{[^}]*\})? (\S+)$")


def declared(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for as many series as the entries of one job allow, each by the first name of its entry."""
    lines = []
    for entry in entries:
        name = re.sub(r"\(([^|()]*)[^()]*\)\??", r"\1", entry["names"]).split("|")[0].replace(".*", "DEV_X")
        state = ',state="failed"' if name == "node_systemd_unit_state" else ""
        lines += [
            f'{name}{{declared="{number}",node="{NODE}"{state}}} {number + 1}' for number in range(entry["series"])
        ]
    return lines


def default_gpus() -> list[str]:
    """Lines of dcgm-exporter with its own list."""
    labels = 'modelName="NVIDIA H100 80GB HBM3",DCGM_FI_DRIVER_VERSION="570.124.06"'
    return [
        f'DCGM_FI_DEV_FIELD_{field}{{gpu="{gpu}",UUID="GPU-{NODE}-{gpu}",device="nvidia{gpu}",{labels}}} {40 + gpu}'
        for field in range(DEFAULT_GPU_FIELDS)
        for gpu in range(GPUS)
    ]


def many_processors(page: str) -> list[str]:
    """The page's lines, with those of processor 0 for each of 192."""
    lines = [line for line in page.splitlines() if not re.search(r'[{,]cpu="[1-9]', line)]
    more = [line.replace('cpu="0"', f'cpu="{cpu}"') for line in lines if '{cpu="0"' in line for cpu in range(1, CPUS)]
    return lines + more


def turns(lines: Iterable[str]) -> list[bytes]:
    """The page in its turns: every second number is larger each time."""
    pages = []
    for turn in range(TURNS):
        text = []
        for index, line in enumerate(lines):
            found = _LINE.match(line)
            if found and index % 2 and found[3].replace(".", "", 1).isdigit():
                text.append(f"{found[1]}{found[2] or ''} {float(found[3]) + turn * 1.37:g}")
            else:
                text.append(line)
        pages.append(("\n".join(text) + "\n").encode())
    return pages


def targets(job: str, nodes: int, port: int) -> list[dict[str, Any]]:
    """A file_sd file for that many nodes."""
    return [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {
                "instance": f"gpu-{number:05}", "group": "gpu_nodes", "rack": f"r{number // 8:04}",
                "__metrics_path__": f"/{job}/gpu-{number:05}",
            },
        }
        for number in range(nodes)
    ]  # fmt: skip


async def serve(pages: Mapping[str, Sequence[bytes]], port: int) -> None:
    """Answer /JOB/NODE on loopback until cancelled."""
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while request := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                _, job, node = request.split()[1].decode().split("/")
                count += 1
                body = pages[job][count % TURNS].replace(NODE.encode(), node.encode())
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    folder, chosen = Path(sys.argv[1]), int(sys.argv[2])
    asyncio.run(serve({path.stem: turns(path.read_text().splitlines()) for path in folder.glob("*.page")}, chosen))
