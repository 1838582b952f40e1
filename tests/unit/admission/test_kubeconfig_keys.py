"""Keys that stand within a kubeconfig: the kubernetes package writes them to files."""

from __future__ import annotations

import base64
import multiprocessing
import stat
import tempfile
from pathlib import Path

import pytest
from kubernetes import client

from gpu_burnin.admission import kubeconfig


@pytest.mark.parametrize("writable", [True, False])
def test_they_lie_in_a_folder_that_goes_with_the_process(
    writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it goes even when the process is killed: tests/unit/system/test_temporary_folder.py."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path if writable else tmp_path / "none"))
    # Once for a process, as are the files of the package.
    kubeconfig._folder_of_keys.cache_clear()
    authority = base64.b64encode(str(tmp_path).encode()).decode()
    cluster = {"server": "https://127.0.0.1:1"} | ({"certificate-authority-data": authority} if writable else {})
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {}}],
    }
    configuration = client.Configuration()
    try:
        kubeconfig.load(document, configuration)
    finally:
        kubeconfig._folder_of_keys.cache_clear()
    if writable:
        [folder] = tmp_path.iterdir()
        assert folder.name.startswith("muster-kube-") and stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [Path(configuration.ssl_ca_cert)] == list(folder.iterdir())
    else:
        assert configuration.host == cluster["server"] and not configuration.ssl_ca_cert


def test_they_go_with_a_worker_that_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ansible's, which ends without atexit; what the process before it has stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = tmp_path / "seen"

    def work() -> None:
        kubeconfig._folder_of_keys.cache_clear()
        seen.write_text(str(kubeconfig._folder_of_keys()))

    kubeconfig._folder_of_keys.cache_clear()
    try:
        own = Path(str(kubeconfig._folder_of_keys()))
        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        worker.join()
    finally:
        kubeconfig._folder_of_keys.cache_clear()
    assert own.is_dir() and seen.read_text() != str(own)
    assert not Path(seen.read_text()).exists()
