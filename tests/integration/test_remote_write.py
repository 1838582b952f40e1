"""What sends the numbers to the site's own store, as the real promtool reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.monitoring_files import render

from .kube import Authority
from .monitoring_pair import VARIABLES, program

STORE = {
    "url": "https://store.example.com/write", "username": "muster", "password_file": "/c/p",
    "ca_file": "/c/ca", "cert_file": "/c/crt", "key_file": "/c/key",
}  # fmt: skip


def test_the_store_of_a_site_is_taken_with_its_secrets_by_path(tmp_path: Path) -> None:
    variables = {**VARIABLES, "fleet_monitoring_remote_write": STORE}
    folder = render(tmp_path, {"mon-1": {"ansible_host": "127.0.0.1"}}, variables)["mon-1"]
    (folder / "tls").mkdir()
    authority = Authority(tmp_path)
    certificate, key = authority.issue("mon-1")
    for name in ("remote-write-ca.crt", "metrics-ca.crt", "kubernetes-ca.crt"):
        (folder / "tls" / name).write_bytes(authority.ca.read_bytes())
    for name in ("remote-write", "host", "prometheus"):
        (folder / "tls" / f"{name}.crt").write_bytes(certificate.read_bytes())
        (folder / "tls" / f"{name}.key").write_bytes(key.read_bytes())
    (folder / "tls" / "remote-write.password").write_text("secret")
    (folder / "rules").mkdir()
    written = (folder / "prometheus.yml").read_text().replace("/etc/prometheus/", "/mnt/")
    (folder / "prometheus.yml").write_text(written)

    def check() -> subprocess.CompletedProcess[str]:
        command = [*program("/usr/bin/promtool", folder), "check", "config", "/mnt/prometheus.yml"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"replacement": "mon-1"' in written and '"username": "muster"' in written
    # It reads the names of what is given; it opens none of the files.
    (folder / "prometheus.yml").write_text(written.replace('"basic_auth"', '"basic_outh"'))
    assert "basic_outh" in check().stderr


def test_a_store_without_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="url"):
        render(
            tmp_path,
            {"mon-1": {"ansible_host": "127.0.0.1"}},
            {**VARIABLES, "fleet_monitoring_remote_write": {"username": "muster"}},
        )
