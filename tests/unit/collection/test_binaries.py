"""Only the expected bytes get into place."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import binaries, files
from ansible_collections.muster.fleet.plugins.modules.binaries import install

from tests.support.server_helpers import QuietFiles, QuietHandler, listening

CONTENT = b"\x7fELF" + b"x" * 100_000
SHA = hashlib.sha256(CONTENT).hexdigest()


class Handler(QuietFiles):
    """Serves a folder; /short promises more than it sends, /reset ends the connection, /chunked says no length."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path not in ("/short", "/reset", "/chunked"):
            super().do_GET()
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header(*(("Transfer-Encoding", "chunked") if self.path == "/chunked" else ("Content-Length", "5000")))
        self.end_headers()
        self.wfile.write(b"a\r\n0123456789\r\n" if self.path == "/chunked" else b"x" * 10)
        if self.path == "/reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/etcd").write_bytes(CONTENT)
    with listening(partial(Handler, directory=str(tmp_path / "mirror"))) as url:
        yield url


def test_installs(mirror: str, tmp_path: Path) -> None:
    target = tmp_path / "bin/etcd"
    binaries.install(f"{mirror}/etcd", str(target), SHA.upper(), 0o755, 5)
    assert binaries.file_sha256(str(target)) == SHA
    assert not binaries.needs_mode(str(target), 0o755)
    target.chmod(0o700)
    assert binaries.needs_mode(str(target), 0o755)
    assert [file.name for file in target.parent.iterdir()] == ["etcd"]


def test_installs_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_bytes(CONTENT)
    binaries.install((tmp_path / "etcd").as_uri(), str(tmp_path / "out"), SHA, 0o755, 5)
    assert (tmp_path / "out").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "sha256", "said"),
    [
        ("/etcd", "0" * 64, "has SHA-256 " + SHA),
        ("/none", SHA, "answers HTTP 404"),
        ("/short", SHA, "/short broke off after 10 of 5000 bytes; run again"),
        ("/reset", SHA, r"/reset broke off after \d+ of 5000 bytes \(.*reset by peer\); run again"),
        ("/chunked", SHA, "/chunked broke off after 10 bytes; run again"),
    ],
)
def test_refuses_and_keeps_the_old(mirror: str, tmp_path: Path, path: str, sha256: str, said: str) -> None:
    target = tmp_path / "bin/etcd"
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(FleetError, match=said):
        binaries.install(mirror + path, str(target), sha256, 0o755, 5)
    assert target.read_text() == "old"
    assert [file.name for file in target.parent.iterdir()] == ["etcd"]


def test_what_does_not_fit_is_not_begun(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(binaries.shutil, "disk_usage", lambda path: SimpleNamespace(free=len(CONTENT) - 1))
    said = f"{mirror}/etcd has 0 MiB, and {tmp_path}/bin has 0 MiB free; make room on its file system"
    with pytest.raises(FleetError, match=re.escape(said)):
        binaries.install(f"{mirror}/etcd", str(tmp_path / "bin/etcd"), SHA, 0o755, 5)
    assert list((tmp_path / "bin").iterdir()) == []


def test_a_disk_that_is_full_meanwhile_is_named_and_left_as_it_was(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own file that is always full is written in place of the temporary one."""

    def full(prefix: str, suffix: str, dir: Path) -> tuple[int, str]:
        (dir / f"{prefix}x{suffix}").touch()
        return os.open("/dev/full", os.O_WRONLY), str(dir / f"{prefix}x{suffix}")

    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(files.tempfile, "mkstemp", full)
    said = f"{mirror}/etcd cannot be put into {tmp_path}/bin: No space left on device; make room on its file system"
    with pytest.raises(FleetError, match=re.escape(said)):
        binaries.install(f"{mirror}/etcd", str(tmp_path / "bin/etcd"), SHA, 0o755, 5)
    assert list((tmp_path / "bin").iterdir()) == []


def test_a_proxy_of_the_host_is_asked_but_for_what_it_excepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens where the mirror should be."""
    url = "http://127.0.0.1:1/etcd"

    class Proxy(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, CONTENT if self.path == url else b"")

    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with listening(Proxy) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        # A host's module is a process of its own, which has looked at no environment before.
        monkeypatch.setattr(binaries.urllib.request, "_opener", None)
        binaries.install(url, str(tmp_path / "etcd"), SHA, 0o755, 5)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(FleetError, match=f"{url} cannot be fetched: .*Connection refused"):
            binaries.install(url, str(tmp_path / "etcd"), SHA, 0o755, 5)
    assert binaries.file_sha256(str(tmp_path / "etcd")) == SHA


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/etcd", "file:///none/etcd", "nonsense"])
def test_unreachable_mirror_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(FleetError, match=f"{url} cannot be fetched: .*; check kube_binaries_url"):
        binaries.install(url, str(tmp_path / "etcd"), SHA, 0o755, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "checksums", "said"),
    [
        (["etcd"], {}, "kube_binaries_checksums has no entry for etcd"),
        (["etcd"], {"etcd": "abc"}, "is not a SHA-256"),
        (["../etcd"], {"../etcd": SHA}, "not a plain file name"),
        ([""], {}, "not a plain file name"),
    ],
)
def test_check_request(names: list[str], checksums: dict[str, str], said: str) -> None:
    with pytest.raises(FleetError, match=re.escape(said)):
        binaries.check_request(names, checksums)
    binaries.check_request(["etcd"], {"etcd": SHA})


def test_every_problem_of_a_request_comes_with_what_to_do() -> None:
    found = list(binaries.request_problems(["a", "b", "c/d"], {"b": "x"}))
    assert [message.split(":")[0] for message, _ in found] == [
        "kube_binaries_checksums has no entry for a",
        "kube_binaries_checksums[b] is not a SHA-256",
        "'c/d' is not a plain file name",
    ]
    assert all(fix for _, fix in found)


def fault(url: str, directory: Path, *names: str, sha256: str = SHA) -> str:
    wanted = names or ("etcd",)
    return binaries.mirror_fault(url, wanted, dict.fromkeys(wanted, sha256), str(directory), 1)


def test_a_mirror_that_answers_has_no_fault(mirror: str, tmp_path: Path) -> None:
    assert fault(mirror, tmp_path / "none") == ""
    assert fault(f"{mirror}/", tmp_path / "none", "etcd", "not-asked-for") == ""
    assert fault((tmp_path / "mirror").as_uri(), tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/x", "the mirror http://127.0.0.1:1/x cannot be reached: .*Connection refused"),
        ("file:///none", "the mirror file:///none cannot be reached: .*No such file or directory: '/none/etcd'"),
        ("nonsense", "the mirror nonsense cannot be reached: unknown url type.*"),
        ("MIRROR/none", "the mirror http://.*/none answers HTTP 404 .* for etcd"),
    ],
)
def test_a_mirror_at_fault_is_one_sentence(mirror: str, tmp_path: Path, url: str, said: str) -> None:
    text = fault(url.replace("MIRROR", mirror), tmp_path / "none")
    assert re.fullmatch(said, text), text


def answers_once(answer: bytes) -> tuple[socket.socket, threading.Thread]:
    """A server that is none: it takes one connection, says `answer` and, without one, stays silent till closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
            if not answer:
                connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "cannot be reached: timed out"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be reached: SSH-2.0"),
        (b"HTTP/1.1 405 Method Not Allowed\r\n\r\n", ""),
    ],
)
def test_a_mirror_that_is_silent_or_no_web_server_or_does_not_know_head(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    listener, thread = answers_once(answer)
    with listener:
        text = fault(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path)
    thread.join()
    assert said in text
    assert bool(said) == bool(text)


def test_a_host_that_has_everything_needs_no_mirror(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_bytes(CONTENT)
    assert fault("http://127.0.0.1:1", tmp_path, sha256=SHA.upper()) == ""
    assert fault("http://127.0.0.1:1", tmp_path, "etcd", "etcdctl") != ""
    assert fault("http://127.0.0.1:1", tmp_path, sha256="0" * 64) != ""
    assert binaries.mirror_fault("http://127.0.0.1:1", [], {}, str(tmp_path), 1) == ""


@pytest.mark.parametrize("sha256", [SHA, "0" * 64])
def test_staging_fetches_what_is_not_right_in_use_and_leaves_nothing_where_it_cannot(
    tmp_path: Path, sha256: str
) -> None:
    """etcdctl is right where it is used."""
    used, staged, mirror = (tmp_path / name for name in ("used", "staged", "mirror"))
    for folder in (used, mirror):
        folder.mkdir()
        for name in ("etcd", "etcdctl", "etcdutl"):
            (folder / name).write_bytes(CONTENT if folder == mirror or name == "etcdctl" else b"old")
    params = {
        "names": ["etcd", "etcdctl", "etcdutl"], "url": mirror.as_uri(), "directory": str(staged), "unlike": str(used),
        "checksums": {"etcd": SHA, "etcdctl": SHA, "etcdutl": sha256}, "timeout_s": 5,
    }  # fmt: skip
    module: Any = SimpleNamespace(params=params, check_mode=False)
    if sha256 == SHA:
        assert install(module)["installed"] == ["etcd", "etcdutl"]
        assert sorted(path.name for path in staged.iterdir()) == ["etcd", "etcdutl"]
    else:
        with pytest.raises(FleetError, match="has SHA-256"):
            install(module)
        assert not staged.exists()
    assert (used / "etcd").read_bytes() == b"old"
