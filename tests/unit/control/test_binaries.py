"""Only the expected bytes get into place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils import binaries
from server_helpers import serving

CONTENT = b"\x7fELF" + b"x" * 100_000
SHA = hashlib.sha256(CONTENT).hexdigest()


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; /short promises more than it sends."""

    def do_GET(self) -> None:
        if self.path != "/short":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "5000")
        self.end_headers()
        self.wfile.write(b"x" * 10)

    def log_message(self, *_args: object) -> None:
        """Quiet."""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/etcd").write_bytes(CONTENT)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "mirror")))
    with serving(httpd):
        yield f"http://127.0.0.1:{httpd.server_port}"


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
        ("/short", SHA, "check kube_binaries_url|broke off after 10 of 5000"),
    ],
)
def test_refuses_and_keeps_the_old(mirror: str, tmp_path: Path, path: str, sha256: str, said: str) -> None:
    target = tmp_path / "bin/etcd"
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(binaries.BinaryError, match=said):
        binaries.install(mirror + path, str(target), sha256, 0o755, 5)
    assert target.read_text() == "old"
    assert [file.name for file in target.parent.iterdir()] == ["etcd"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/etcd", "file:///none/etcd", "nonsense"])
def test_unreachable_mirror_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(binaries.BinaryError, match=f"{url} cannot be fetched: .*; check kube_binaries_url"):
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
    problem = binaries.check_request(names, checksums)
    assert problem is not None
    assert said in problem
    assert binaries.check_request(["etcd"], {"etcd": SHA}) is None
