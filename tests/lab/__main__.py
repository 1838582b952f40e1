"""Command line of the lab: `python -m tests.lab up|down|status|reboot|scenario -i INVENTORY`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpu_burnin.errors import GpuBurninError

from . import hosts
from .image import ensure_image
from .model import read_lab
from .older import ensure_older
from .paths import REPOSITORY
from .prepare import prepare


def main() -> int:
    """Run one command; 0 when done, 2 with one sentence when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("-i", "--inventory", type=Path, action="append", help="may be given more than once")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("image", help="make the hosts' root file system, print its directory")
    commands.add_parser("prepare", help="have that and all binaries: what all labs need before their hosts can start")
    commands.add_parser(
        "older", help="build Kubernetes of the minor before, for tests of upgrades, print its directory"
    )
    commands.add_parser("up", help="start the hosts")
    commands.add_parser("down", help="remove hosts, network, disks and state")
    commands.add_parser("status", help="print the state of each host as JSON")
    commands.add_parser("reboot", help="restart one host").add_argument("host")
    scenario = commands.add_parser("scenario", help="change the GPU scenario of a running host")
    scenario.add_argument("host")
    scenario.add_argument("scenario")
    arguments = parser.parse_args()
    try:
        if arguments.command == "image":
            print(ensure_image())
            return 0
        if arguments.command == "prepare":
            prepare()
            return 0
        if arguments.command == "older":
            print(ensure_older())
            return 0
        lab = read_lab(arguments.inventory or [REPOSITORY / "inventory/lab"])
        match arguments.command:
            case "up":
                hosts.require_root()
                prepare()
                hosts.up(lab)
            case "down":
                hosts.down(lab)
            case "status":
                print(json.dumps(hosts.status(lab)))
            case "reboot":
                hosts.reboot(lab, arguments.host)
            case "scenario":
                hosts.install_scenario(lab, arguments.host, arguments.scenario)
    except GpuBurninError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lab: stopped; what is finished is kept, and the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
