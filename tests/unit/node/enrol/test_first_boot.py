"""What a machine is given, its keys, and what makes it the node that it was let in as."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.api.enrolment import Decision, EnrolmentError, Handed, parse_handed
from gpu_burnin.cli.enrol import enrol
from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.enrol import given, keys, settle
from gpu_burnin.node.enrol.course import Enrolled
from gpu_burnin.settings.config import PublishConfig
from tests.support.command_line import called

TEXT = "gpu-1:abcdef.0123456789abcdef"
HANDED = Handed("gpu-1", "abcdef", "0123456789abcdef")
DECISION = Decision(True, "alice", "seen", "x", "0" * 64, "198.18.0.9", "198.19.9.0/24")
ENROLLED = Enrolled("gpu-1", DECISION, b"-----BEGIN CERTIFICATE-----\n")
FILES = ("etc/systemd/system/kubelet.service", "etc/pod-network/config.json", "etc/gpu-burnin/config.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine that booted from the image."""
    for folder in ("proc", "etc/muster", *(str(Path(name).parent) for name in FILES)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/cmdline").write_text("root=/dev/vda1 quiet\n")
    (tmp_path / FILES[0]).write_text("--hostname-override=image-node --node-ip=192.0.2.254\n")
    (tmp_path / FILES[0]).chmod(0o644)
    (tmp_path / FILES[1]).write_text('{"range": "192.0.2.0/25", "image-node": "192.0.2.254"}\n')
    (tmp_path / FILES[2]).write_text("level: standard\n")
    manifest = {"schema": "muster-image/v1", "node": "image-node", "address": "192.0.2.254", "files": FILES}
    (tmp_path / settle.MANIFEST).write_text(json.dumps({**manifest, "pod_range": "192.0.2.0/25"}))
    return tmp_path


class TestGiven:
    def test_by_a_file_of_user_data(self, root: Path) -> None:
        (root / given.FILE).write_text(f"{TEXT}\n")
        assert given.given(root) == HANDED
        given.forget(root)
        given.forget(root)
        with pytest.raises(EnrolmentError, match="was given no token"):
            given.given(root)

    def test_by_the_command_line_of_the_kernel(self, root: Path) -> None:
        (root / "proc/cmdline").write_text(f"quiet muster.enrol={TEXT} muster.enrolled=1\n")
        assert given.given(root) == HANDED

    def test_by_both_they_are_the_same(self, root: Path) -> None:
        (root / given.FILE).write_text(TEXT)
        (root / "proc/cmdline").write_text(f"muster.enrol={TEXT}\n")
        assert given.given(root) == HANDED
        (root / "proc/cmdline").write_text("muster.enrol=gpu-2:abcdef.0123456789abcdef\n")
        with pytest.raises(EnrolmentError, match="was given 2 different tokens"):
            given.given(root)

    @pytest.mark.parametrize(
        "text",
        [
            "abcdef.0123456789abcdef",
            ":abcdef.0123456789abcdef",
            "GPU-1:abcdef.0123456789abcdef",
            "gpu/../1:abcdef.0123456789abcdef",
            "gpu-1:abcdef.0123456789abcde",
            "gpu-1:abcdef-0123456789abcdef",
            "gpu-1:ABCDEF.0123456789ABCDEF",
            "gpu-1-:abcdef.0123456789abcdef",
        ],
    )
    def test_what_is_no_token_is_refused_and_not_shown(self, text: str) -> None:
        with pytest.raises(EnrolmentError, match=r"is not NODE:ID\.SECRET") as caught:
            parse_handed(text)
        assert "0123456789" not in str(caught.value)

    def test_a_secret_is_in_no_log(self) -> None:
        assert HANDED.secret not in repr(HANDED)


class TestKeys:
    def test_are_made_once_and_only_the_request_names_the_node(self, tmp_path: Path) -> None:
        directory = tmp_path / "state"
        pair = keys.pair_of(directory, "gpu-1.example.com")
        assert keys.pair_of(directory, "gpu-1.example.com") == pair
        assert directory.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in directory.iterdir())
        command = ["openssl", "req", "-in", "/dev/stdin", "-verify", "-noout", "-subject"]
        done = subprocess.run(command, input=pair.request, capture_output=True, check=True)
        assert done.stdout.decode().split("\n")[0].replace(" ", "") in (
            "subject=O=system:nodes,CN=system:node:gpu-1.example.com",
        )
        other = keys.pair_of(directory, "gpu-2")
        assert other.key == pair.key and other.request_sha256 != pair.request_sha256
        keys.forget(directory)
        keys.forget(directory)
        assert not (directory / "kubelet.key").exists()

    def test_without_openssl_a_sentence_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(GpuBurninError, match="openssl is missing; install it into the image"):
            keys.pair_of(tmp_path / "state", "gpu-1")


class TestSettling:
    def settled(self, root: Path, enrolled: Enrolled = ENROLLED) -> tuple[tuple[str, ...], list[str]]:
        named: list[str] = []
        state = root / "var/lib/muster-enrol"
        state.mkdir(parents=True, exist_ok=True)
        return settle.settle(enrolled, b"KEY\n", PublishConfig(), state, root, named.append), named

    def test_the_files_of_the_roles_are_this_nodes(self, root: Path) -> None:
        written, named = self.settled(root)
        assert (written, named) == (FILES[:2], ["gpu-1"])
        assert (root / FILES[0]).read_text() == "--hostname-override=gpu-1 --node-ip=198.18.0.9\n"
        assert (root / FILES[0]).stat().st_mode & 0o777 == 0o644
        assert json.loads((root / FILES[1]).read_text()) == {"range": "198.19.9.0/24", "gpu-1": "198.18.0.9"}
        assert (root / "etc/hostname").read_text() == "gpu-1\n"
        current = root / "var/lib/kubelet/pki/kubelet-client-current.pem"
        assert current.is_symlink() and current.read_bytes() == ENROLLED.certificate + b"KEY\n"
        assert current.resolve().stat().st_mode & 0o777 == 0o600
        assert (root / "var/lib/muster-enrol" / settle.DONE).read_text() == "gpu-1\n"
        # Again, as after a cut: nothing is left to change.
        assert self.settled(root)[0] == ()

    @pytest.mark.parametrize("changes", [{"address": ""}, {"pod_range": ""}, {"address": "x\nUser=0"}])
    def test_a_decision_without_addresses_changes_nothing(self, root: Path, changes: dict[str, str]) -> None:
        with pytest.raises(EnrolmentError, match="was approved without address or pod range"):
            self.settled(root, replace(ENROLLED, decision=replace(DECISION, **changes)))
        assert "image-node" in (root / FILES[0]).read_text()
        assert not (root / "var/lib/muster-enrol" / settle.DONE).exists()

    def test_a_file_of_the_image_that_is_gone_leaves_it_undone(self, root: Path) -> None:
        (root / FILES[1]).unlink()
        with pytest.raises(EnrolmentError, match="cannot become this node"):
            self.settled(root)
        assert not (root / "var/lib/muster-enrol" / settle.DONE).exists()

    def test_one_that_was_cut_becomes_that_node_and_no_other(self, root: Path) -> None:
        """It would have the files of two."""
        path, whole = root / FILES[1], (root / FILES[1]).read_bytes()
        path.unlink()
        with pytest.raises(EnrolmentError, match="cannot become this node"):
            self.settled(root)
        path.write_bytes(whole)
        for other in (replace(ENROLLED, node="gpu-2"), replace(ENROLLED, decision=replace(DECISION, address="::1"))):
            with pytest.raises(EnrolmentError, match=r"while it became gpu-1 198\.18\.0\.9 .*: write the image"):
                self.settled(root, other)
        assert self.settled(root)[0] == (FILES[1],)

    def test_a_machine_that_is_not_from_the_image_is_left_alone(self, root: Path) -> None:
        (root / settle.MANIFEST).write_text('{"schema": "other"}')
        with pytest.raises(EnrolmentError, match="boot a machine that `gpu-burnin seal` has sealed"):
            settle.read_manifest(root)


class TestTheCommand:
    def test_does_nothing_a_second_time(self, root: Path, tmp_path: Path) -> None:
        state = tmp_path / "state"
        state.mkdir()
        (state / settle.DONE).write_text("gpu-1\n")
        done = called(cli, "enrol", "--state", state, "--root", root)
        assert (done.returncode, done.stdout) == (0, "enrolled before, as gpu-1\n")

    def test_says_that_there_is_no_token(self, root: Path, tmp_path: Path) -> None:
        done = called(cli, "enrol", "--state", tmp_path / "state", "--root", root, "--config", "/dev/null")
        assert done.returncode == 2 and "this machine was given no token" in done.stderr
        assert enrol.name == "enrol"
