"""A run on a machine that somebody has just rented: not root, no journal, kernel log, machine id or host key."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.signing import obstacles, refuse_unsigned
from gpu_burnin.report import model
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.state_dir import default_state_dir
from gpu_burnin.system.host import Host, read_host
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
USER = 54321
# Runs as a user without a name in a mount namespace of its own; the one capability lets it read this checkout
# wherever it lies. Commands such as ssh-keygen and journalctl are not there.
_BARE = f"""set -e
mount --bind /dev/null /etc/machine-id
mount --bind /dev/null /dev/kmsg
mount -t tmpfs -o ro,mode=000 tmpfs /dev/shm
exec setpriv --reuid {USER} --regid {USER} --clear-groups --bounding-set -all,+dac_read_search \
  --inh-caps -all,+dac_read_search --ambient-caps -all,+dac_read_search env PATH=/nowhere "$@"
"""
Bare = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home() -> Iterator[Path]:
    """The user's home; a folder that pytest makes is closed to others."""
    with tempfile.TemporaryDirectory(prefix="bare-machine-") as name:
        if os.geteuid() == 0:
            shutil.chown(name, USER, USER)
        yield Path(name)


@pytest.fixture
def bare(home: Path, fake_nvml: Path) -> Bare:
    """Calls gpu-burnin on a bare machine with two healthy GPUs."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("a bare machine is made in a mount namespace, which takes root")
    environment = {
        "HOME": str(home),
        "LD_LIBRARY_PATH": str(fake_nvml),
        "MUSTER_FAKE_NVML_SCENARIO": str(ROOT / "tests/lab/scenarios/healthy-2gpu.scenario"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def call(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
        config = home / "config.yaml"
        config.write_text(yaml.safe_dump({"backend": "cpu", "allow_simulated": True, **settings}))
        command = ["unshare", "-m", "sh", "-c", _BARE, "bare", sys.executable, "-m", "gpu_burnin", *arguments]
        return subprocess.run(
            [*command, "--config", str(config)],
            env={**environment, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=home,
        )

    return call


@pytest.mark.slow
def test_a_bare_machine_gets_a_verdict_on_its_gpus_and_a_sentence_for_each_thing_it_lacks(
    bare: Bare, home: Path
) -> None:
    done = bare("run", "--json", "--level", "quick", "--checks", "state,hbm", checks=["state", "hbm"],
                shapes={"hbm_bytes": 65536})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    model.validate(report)
    assert (report["verdict"], report["reasons"], report["host"]["machine_id"]) == ("PASS", [], "")
    said = {warning["code"]: warning["message"] for warning in report["warnings"]}
    assert said.keys() == {"EXTENDED_WANTED", "NO_EVIDENCE", "XID_SOURCE_MISSING"}
    for what in ("systemd-machine-id-setup", "install openssh-client", "XIDs since boot"):
        assert what in said["NO_EVIDENCE"]
    assert "XIDs before this run" in said["XID_SOURCE_MISSING"]
    state = home / ".local/state/gpu-burnin"
    assert (state / "latest/report.json").is_file()
    assert not (state / "latest/evidence.json").exists()
    # What is not signed opens no gate.
    gate = bare("gate")
    assert (gate.returncode, gate.stdout) == (3, "")
    assert "closed" in gate.stderr


@pytest.mark.slow
def test_a_bare_machine_is_refused_where_its_configuration_requires_evidence(bare: Bare) -> None:
    done = bare("run", require_evidence=True)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert "require_evidence is set: /etc/machine-id holds no machine id" in sentence


def test_a_state_directory_that_cannot_be_written_names_the_way_out(bare: Bare) -> None:
    done = bare("run", state_dir="/var/lib/no-such-directory")
    assert done.returncode == 2
    assert "give --state-dir a directory that can be written, such as /tmp/gpu-burnin" in done.stderr


HOST = Host("0" * 32, "11111111-2222-3333-4444-555555555555", "gpu-1", "6.1")


def test_a_host_that_can_sign_has_no_obstacle(host_key: Path) -> None:
    assert obstacles(Config(host_key=host_key), HOST) == ()


@pytest.mark.parametrize(
    ("host", "key", "says"),
    [
        (Host("", HOST.boot_id, "gpu-1", "6.1"), None, "systemd-machine-id-setup"),
        (Host(HOST.machine_id, "", "gpu-1", "6.1"), None, "mount /proc"),
        (HOST, Path("/none"), "/none (No such file or directory): make it with `ssh-keygen -A`, or set host_key"),
    ],
)
def test_each_obstacle_is_named_and_refused_only_where_a_gate_waits_for_evidence(
    host: Host, key: Path | None, says: str, host_key: Path
) -> None:
    config = Config(host_key=key or host_key)
    found = obstacles(config, host)
    assert len(found) == 1 and says in found[0]
    required = replace(config, require_evidence=True)
    lab = replace(required, allow_simulated=True)
    for waits, simulated in ((required, False), (lab, False), (lab, True)):
        with pytest.raises(GpuBurninError, match="require_evidence is set") as caught:
            refuse_unsigned(waits, found, simulated=simulated)
        assert says in str(caught.value)
        assert caught.value.exit_code == 2
    refuse_unsigned(config, found, simulated=False)
    refuse_unsigned(required, found, simulated=True)
    refuse_unsigned(required, (), simulated=False)


def test_an_empty_machine_id_is_read_as_none(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for content in ("", "uninitialized\n"):
        (tmp_path / "etc/machine-id").write_text(content)
        assert (read_host(tmp_path).machine_id, read_host(tmp_path).boot_id) == ("", "")


@pytest.mark.parametrize(
    ("environment", "is_root", "expected"),
    [
        ({"HOME": "/root", "XDG_STATE_HOME": "/root/state"}, True, "/var/lib/gpu-burnin"),
        ({"HOME": "/home/a"}, False, "/home/a/.local/state/gpu-burnin"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/srv/a"}, False, "/srv/a/gpu-burnin"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "not/absolute"}, False, "/home/a/.local/state/gpu-burnin"),
        ({}, False, "/var/lib/gpu-burnin"),
    ],
)
def test_the_state_of_a_user_is_in_the_users_home(environment: dict[str, str], is_root: bool, expected: str) -> None:
    assert default_state_dir(environment, is_root=is_root) == Path(expected)
