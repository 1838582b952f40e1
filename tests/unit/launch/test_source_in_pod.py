"""The source as the pod gets it: from its archive, or a URL whose hash has to hold."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.launch.pod.setup import Refused
from gpu_burnin.launch.pod.source import fetch, unpack
from tests.unit.launch.examples import pod_of


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the URL at which it is."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def _archive(*members: tarfile.TarInfo, data: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member in members:
            member.size = len(data) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_an_archive_behind_a_url_is_run(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, url = served
    archive = _archive(tarfile.TarInfo("project/train.py"), data=b"print('from afar')")
    (folder / "project.tar.gz").write_bytes(archive)
    made = pod_of(
        tmp_path / "pod",
        "",
        processes_per_node=1,
        entry="project/train.py",
        url=f"{url}/project.tar.gz",
        sha256=hashlib.sha256(archive).hexdigest(),
    )
    code, log = made.run()
    assert code == 0 and "[0] from afar" in log


def test_another_hash_is_refused_and_nothing_of_it_is_run(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, url = served
    (folder / "train.py").write_text("print('changed')")
    made = pod_of(tmp_path / "pod", "", processes_per_node=1, url=f"{url}/train.py", sha256="ab" * 32)
    code, log = made.run()
    assert code == 1 and "changed'" not in log
    assert made.termination_log.read_text().startswith(f"{url}/train.py has the SHA-256 ")


def test_a_url_that_answers_no_file_is_said(
    tmp_path: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(Refused, match=r"cannot be fetched .*404.*; check that the pods reach it"):
        fetch(f"{served[1]}/none.tar.gz", "0" * 64, tmp_path / "none")


@pytest.mark.parametrize(
    "member", [tarfile.TarInfo("../beside"), tarfile.TarInfo("/etc/passwd"), _link("a", "../../b"), _link("a", "/etc")]
)
def test_nothing_leaves_the_folder(tmp_path: Path, member: tarfile.TarInfo) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(_archive(member))
    with pytest.raises(Refused, match="leads out of the folder"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "source")


def test_devices_are_refused(tmp_path: Path) -> None:
    device = tarfile.TarInfo("null")
    device.type = tarfile.CHRTYPE
    (tmp_path / "bad.tar.gz").write_bytes(_archive(device))
    with pytest.raises(Refused, match="neither file, folder nor link"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "source")


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(Refused, match=r"page\.html cannot be unpacked"):
        unpack(tmp_path / "page.html", tmp_path / "source")


def test_a_source_without_its_entry_is_said(tmp_path: Path) -> None:
    made = pod_of(tmp_path, "", processes_per_node=1)
    settings = Path(made.environment["MUSTER_LAUNCH_DIR"]) / "launch.json"
    settings.write_text(settings.read_text().replace("train.py", "other.py"))
    code, log = made.run()
    assert code == 1 and "the source has no file other.py" in log
