"""What dpkg has of the NVIDIA stack: packages of a second architecture are others than the host's own."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import ARCHITECTURES, installed

ROW = "{name}\t535.183.01-0ubuntu1\t{want}\tinstalled\tUbuntu Developers <u@lists.ubuntu.com>\n"


def test_a_library_of_a_second_architecture_has_its_own_name_and_hold() -> None:
    """Without it `apt-mark hold` holds the host's own one, and the other stays as it is for ever."""
    native = ARCHITECTURES[os.uname().machine]
    rows = (
        ROW.format(name=f"libnvidia-compute-535:{native}", want="hold"),
        ROW.format(name="libnvidia-compute-535:i386", want="install"),
        ROW.format(name="nvidia-utils-535", want="hold"),
    )
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str], timeout_s: float = 0.0) -> Output:
        asked.append(command)
        return Output(0, "".join(rows), "")

    found = installed(run)
    assert {package.name: package.held for package in found} == {
        "libnvidia-compute-535": True,
        "libnvidia-compute-535:i386": False,
        "nvidia-utils-535": True,
    }
    assert {package.stem for package in found} == {"libnvidia-compute-535", "nvidia-utils-535"}
    assert any("${binary:Package}" in word for word in asked[0])
