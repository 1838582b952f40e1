"""The node's part in a pod: its key, its driver, and burn-ins that are its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.contained import Contained, keep_driver, link_driver, make_key, own_config, prepare, same_machine
from gpu_burnin.node.signing import own_public_key
from gpu_burnin.node.store import Store
from gpu_burnin.settings.config import Config
from tests.support.clocks import PATIENCE_S, wait_until
from tests.support.enrolments import CLAIM


def test_the_driver_and_nothing_else_of_the_host_is_linked(tmp_path: Path) -> None:
    libraries = tmp_path / "host/usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so.580.1", "libnvidia-ml.so.580.1", "libc.so.6"):
        (libraries / name).touch()
    (libraries / "libnvidia-ml.so.1").symlink_to("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1")
    into = tmp_path / "run/driver"
    for _ in range(2):
        assert link_driver(tmp_path / "host", into) == 3
    assert {path.name for path in into.iterdir()} == {"libcuda.so.580.1", "libnvidia-ml.so.580.1", "libnvidia-ml.so.1"}
    # A link of the host that is absolute would lead into the container.
    assert (into / "libnvidia-ml.so.1").resolve() == libraries / "libnvidia-ml.so.580.1"


def test_a_driver_that_comes_late_or_goes_is_seen(tmp_path: Path) -> None:
    root, into, said, stop = tmp_path / "driver", tmp_path / "links", list[str](), threading.Event()
    root.mkdir()
    library = root / "usr/lib64/libcuda.so.580.1"

    def next_look(_: float) -> None:
        if not library.parent.exists():
            library.parent.mkdir(parents=True)
            library.touch()
        elif library.exists():
            assert (into / library.name).resolve() == library
            library.rename(library.with_name("libcuda.so.590.1"))
        else:
            stop.set()

    keep_driver("gpu-1", lambda message, code="": said.append(message), stop, next_look, root, into)
    assert [path.name for path in into.iterdir()] == ["libcuda.so.590.1"]
    assert [line.partition(": ")[2].partition(" below")[0] for line in said] == [
        "no library of the driver is yet",
        "1 libraries of the driver are",
    ]


def test_a_library_that_comes_late_is_found_in_a_folder_that_was_there(tmp_path: Path) -> None:
    """What the manifest's mount of its own is for."""
    code = (
        "import ctypes, pathlib, sys; into = pathlib.Path(sys.argv[1]); into.mkdir(exist_ok=True); "
        "(into / 'libmuster-late.so.1').symlink_to(sys.argv[2]); ctypes.CDLL('libmuster-late.so.1')"
    )
    real = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line)
    for there in (True, False):
        into = tmp_path / str(there)
        if there:
            into.mkdir()
        env = {**os.environ, "LD_LIBRARY_PATH": str(into)}
        done = subprocess.run([sys.executable, "-c", code, str(into), real], env=env, capture_output=True, check=False)
        assert (done.returncode == 0) is there, done.stderr


def test_without_a_driver_no_burn_in_begins(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    system = Contained(replace(Config(), node_name="gpu-1"), None, tmp_path, (sys.executable, "-c", ""))
    with pytest.raises(GpuBurninError, match="no library of the driver is yet below /driver"):
        system.start(())
    assert not system.burnin().running
    assert "no library of the driver" in system.hindered()
    (tmp_path / "driver/libcuda.so.1").touch()
    assert system.hindered() == ""


def test_the_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "identity/ed25519"
    make_key(path)
    first = own_public_key(path)
    make_key(path)
    assert own_public_key(path) == first
    assert [one.name for one in path.parent.iterdir()] == ["ed25519"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GpuBurninError, match=r"gpu-1: .* cannot be made"):
        prepare(Config(), "gpu-1", tmp_path / "file/run", tmp_path)


def test_a_burn_in_is_a_child_with_the_name_of_its_node(tmp_path: Path) -> None:
    base = tmp_path / "agent.yaml"
    base.write_text(yaml.safe_dump({"level": "quick", "publish": {"domain": "example.com"}}))
    config = replace(Config(), node_name="gpu-1", state_dir=tmp_path / "state", host_key=tmp_path / "key")
    # It ends when it is let.
    os.mkfifo(tmp_path / "end")
    code = f"import json, sys; print(json.dumps(sys.argv[1:])); open({str(tmp_path / 'end')!r}).read(); sys.exit(3)"
    system = Contained(config, base, tmp_path, (sys.executable, "-c", code))
    assert not system.burnin().running
    assert system.start(("--level", "quick")).started
    assert system.burnin().running
    assert not system.start(()).started
    (tmp_path / "end").write_text("")
    wait_until(lambda: not system.burnin().running)
    # An inconclusive run is a result.
    assert system.burnin().failed == ""
    arguments = json.loads((tmp_path / "report.json").read_text())
    assert arguments[:2] == ["run", "--json"] and arguments[-2:] == ["--level", "quick"]
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written == yaml.safe_load(own_config(base, config))
    assert (written["node_name"], written["publish"]["domain"]) == ("gpu-1", "example.com")


def test_a_burn_in_ends_with_its_agent(tmp_path: Path) -> None:
    config = replace(Config(), node_name="gpu-1", state_dir=tmp_path / "state")
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: {}); print(1, flush=True); time.sleep(60)"
    )
    gentle = Contained(config, None, tmp_path, (sys.executable, "-c", code.format("sys.exit(3)")))
    assert not gentle.end()
    deaf = Contained(config, None, tmp_path, (sys.executable, "-c", code.format("None")))
    report = tmp_path / "report.json"
    for one, end_s, wanted in ((gentle, PATIENCE_S, 3), (deaf, 0.2, -signal.SIGKILL)):
        one.start(())
        wait_until(lambda: report.read_text() != "")
        child = one._child
        assert child is not None
        assert one.end(end_s)
        assert child.returncode == wanted
        assert not one.end()


def test_a_burn_in_that_outlived_its_agent_is_under_way(tmp_path: Path) -> None:
    config = replace(Config(), node_name="gpu-1", state_dir=tmp_path / "state")
    system = Contained(config, None, tmp_path)
    with Store(config.state_dir).locked():
        assert system.burnin().running
        assert not system.start(()).started
    assert not system.burnin().running


def test_no_key_is_made_in_the_place_of_the_hosts(tmp_path: Path) -> None:
    config = replace(Config(), state_dir=tmp_path / "state", host_key=tmp_path / "ssh/ssh_host_ed25519_key")
    prepare(config, "gpu-1", tmp_path / "run", tmp_path)
    assert not config.host_key.exists()
    prepare(replace(config, host_key=config.state_dir / "identity/ed25519"), "gpu-1", tmp_path / "run", tmp_path)
    assert (config.state_dir / "identity/ed25519").exists()


def test_the_claim_of_a_boot_before_is_of_the_same_machine() -> None:
    text = replace(CLAIM, boot_id="before").canonical().decode()
    assert same_machine(text, CLAIM)
    assert not same_machine(text, replace(CLAIM, host_key="ssh-ed25519 BBBB"))
    assert not same_machine("", CLAIM)
