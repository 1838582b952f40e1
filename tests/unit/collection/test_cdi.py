"""The CDI specification against the GPUs of a host: every way in which containers would get other than they ask for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import cdi
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.nvml import Gpu

from tests.support.nvidia_host import GPU

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08"
HOOK = "/usr/bin/nvidia-cdi-hook"
Change = Callable[[dict[str, Any]], object]


def gpu(uuid: str, mig: str = "off") -> Gpu:
    return Gpu(**{**GPU, "uuid": uuid, "mig": mig})


def device(name: str, *nodes: str) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    """What nvidia-ctk makes of two GPUs, and a root with all files that it names."""
    for name in ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", LIBRARY, HOOK):
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "var/run/cdi").mkdir(parents=True)
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            device("0", "/dev/nvidia0"), device("GPU-1", "/dev/nvidia0"), device("GPU-2", "/dev/nvidia1"),
            device("all", "/dev/nvidia0", "/dev/nvidia1"),
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "mounts": [{"hostPath": LIBRARY, "containerPath": LIBRARY}],
            "hooks": [{"hookName": "createContainer", "path": HOOK}],
        },
    }  # fmt: skip


def problems_of(root: Path, document: Any, gpus: tuple[Gpu, ...] = (gpu("GPU-1"), gpu("GPU-2"))) -> list[str]:
    path = root / "var/run/cdi/nvidia.yaml"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return [problem.replace(str(root), "") for problem in cdi.problems(root, path, gpus)]


def test_one_that_fits_has_no_problem(tmp_path: Path, spec: dict[str, Any]) -> None:
    assert problems_of(tmp_path, spec) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["devices"].pop(2), "has no device for the GPU GPU-2"),
        (lambda s: s["devices"].append(device("GPU-3", "/dev/nvidia1")), "has a device for GPU-3, which NVML does not"),
        (lambda s: s["devices"].append(device("GPU-1", "/dev/nvidia0", "/dev/nvidia1")),
         "gives /dev/nvidia0, /dev/nvidia1 for the one GPU GPU-1"),
        (lambda s: s["devices"].append(device("GPU-1")), "gives no device node for the one GPU GPU-1"),
        (lambda s: s["devices"].append(device("9", "/dev/nvidia9")), "names /dev/nvidia9, which is not there"),
        (lambda s: s["containerEdits"]["mounts"].append({"hostPath": "/lib/libcuda.so.575.57.08"}),
         "names /lib/libcuda.so.575.57.08, which is not there"),
        (lambda s: s["containerEdits"]["hooks"].append({"path": "/usr/bin/gone"}), "names /usr/bin/gone, which is not"),
        (lambda s: s.update(kind="example.com/gpu"), "is of kind example.com/gpu"),
        (lambda s: s.pop("devices"), "cannot be read (KeyError: 'devices')"),
    ],
)  # fmt: skip
def test_each_difference_is_told_once(tmp_path: Path, spec: dict[str, Any], change: Change, said: str) -> None:
    change(spec)
    problems = problems_of(tmp_path, spec)
    assert len(problems) == 1 and said in problems[0], problems


def test_a_file_that_is_no_specification_or_none_is_told(tmp_path: Path, spec: dict[str, Any]) -> None:
    assert "cannot be read" in problems_of(tmp_path, "kind: nvidia.com/gpu\n")[0]
    path = tmp_path / "var/run/cdi/nvidia.yaml"
    path.unlink()
    assert "is missing" in next(cdi.problems(tmp_path, path, ()))


# As `nvidia-ctk cdi generate` writes it.
YAML = """---
cdiVersion: 0.5.0
containerEdits:
    deviceNodes:
        - path: /dev/nvidiactl
devices:
    - containerEdits:
        deviceNodes:
            - path: /dev/nvidia1
              name: not a device
      name: GPU-2
    - name: "7"
      containerEdits: {}
kind: nvidia.com/gpu
"""
JSON = json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-2", "containerEdits": {}}]})
NEITHER = "defines GPU-2 of nvidia.com/gpu too, and containerd then gives neither: remove it"


@pytest.mark.parametrize("text", [YAML, YAML.replace("\n    ", "\n"), YAML.replace("GPU-2", "'GPU-2'"), JSON])
def test_a_second_file_in_the_same_folder_takes_the_devices_that_both_define(
    tmp_path: Path, spec: dict[str, Any], text: str
) -> None:
    other = tmp_path / "var/run/cdi/old.yaml"
    other.write_text(text)
    assert problems_of(tmp_path, spec) == [f"/var/run/cdi/old.yaml {NEITHER}"]
    other.rename(other.with_suffix(".bak"))
    assert problems_of(tmp_path, spec) == []


@pytest.mark.parametrize("text", [YAML, JSON])
def test_a_file_in_the_folder_that_loses_is_no_conflict(tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(text)
    assert problems_of(tmp_path, spec) == []


def test_a_file_in_the_folder_that_wins_is_what_containers_get(tmp_path: Path, spec: dict[str, Any]) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    path = tmp_path / "etc/cdi/nvidia.yaml"
    path.write_text(json.dumps(spec))
    (tmp_path / "var/run/cdi/other.json").write_text(JSON)
    problems = [
        problem.replace(str(tmp_path), "") for problem in cdi.problems(tmp_path, path, (gpu("GPU-1"), gpu("GPU-2")))
    ]
    assert problems == [
        "/var/run/cdi/other.json defines GPU-2 of nvidia.com/gpu too, and containerd gives those instead: remove it"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n",
        "kind: nvidia.com/gpu\ndevices: []\n",
        YAML.replace("nvidia.com/gpu", "nvidia.com/imex-channel"),
        YAML.replace("GPU-2", "GPU-9"),
        JSON.replace("GPU-2", "GPU-9"),
    ],
)
def test_a_file_of_other_devices_takes_none(tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    (tmp_path / "var/run/cdi/old.yaml").write_text(text)
    assert problems_of(tmp_path, spec) == []


@pytest.mark.parametrize(
    "text",
    ["kind: nvidia.com/gpu\ndevices: [{name: GPU-2}]\n", "{broken", "[]", "devices:\n- containerEdits: {}\nkind: x\n"],
)
def test_a_file_that_cannot_be_read_here_is_told_and_not_passed_over(
    tmp_path: Path, spec: dict[str, Any], text: str
) -> None:
    (tmp_path / "var/run/cdi/old.yaml").write_text(text)
    (problem,) = problems_of(tmp_path, spec)
    assert problem.startswith(
        "whether /var/run/cdi/old.yaml takes devices from /var/run/cdi/nvidia.yaml cannot be told"
    )


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("  Version:  v2.4.2\n", ""),
        ("  Version:  1.7.28\n", ""),
        ("  Version:  1.6.20~ds1\n", "containerd 1.6.20~ds1 knows no CDI: set container_runtime_source"),
        ("", "containerd does not answer"),
    ],
)
def test_an_old_containerd_would_start_containers_without_their_gpus(server: str, said: str) -> None:
    text = f"Client:\n  Version:  v2.4.2\n\nServer:\n{server}"
    assert cdi.runtime_problem(text).startswith(said) and bool(said) == bool(cdi.runtime_problem(text))


def test_a_gpu_in_mig_mode_is_not_given_whole_and_needs_its_instances(tmp_path: Path, spec: dict[str, Any]) -> None:
    parted = (gpu("GPU-1"), gpu("GPU-2", mig="on"))
    spec["devices"].pop(2)
    assert "has no MIG device" in problems_of(tmp_path, spec, parted)[0]
    spec["devices"].append(device("MIG-5", "/dev/nvidia1"))
    assert problems_of(tmp_path, spec, parted) == []
