"""The numbers go to the site's own store: as the real promtool reads it, and with a real Prometheus as the store.

Only here: a real Prometheus keeps for a store that is away what it reads meanwhile.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.authority import Authority
from tests.support.monitoring_files import render

from .kube import Part, ended, free_ports, until
from .monitoring_pair import VARIABLES, program

STORE = {
    "url": "https://store.example.com/write", "username": "muster", "password_file": "/c/p",
    "ca_file": "/c/ca", "cert_file": "/c/crt", "key_file": "/c/key",
}  # fmt: skip
# A series that is read each second, whatever its target says.
READ = 'up{job="prometheus"}'


def sender(folder: Path, store: Mapping[str, str]) -> tuple[Path, Authority]:
    """What the role writes on a host with this store, for a program whose /mnt it is; and who signs for it."""
    rendered = render(
        folder, {"mon-1": {"ansible_host": "127.0.0.1"}}, {**VARIABLES, "fleet_monitoring_remote_write": store}
    )["mon-1"]
    (rendered / "tls").mkdir()
    authority = Authority(folder)
    certificate, key = authority.issue("mon-1")
    for name in ("remote-write-ca.crt", "metrics-ca.crt", "kubernetes-ca.crt"):
        (rendered / "tls" / name).write_bytes(authority.ca.read_bytes())
    for name in ("remote-write", "host", "prometheus"):
        (rendered / "tls" / f"{name}.crt").write_bytes(certificate.read_bytes())
        (rendered / "tls" / f"{name}.key").write_bytes(key.read_bytes())
    (rendered / "tls" / "remote-write.password").write_text("secret")
    (rendered / "rules").mkdir()
    written = (rendered / "prometheus.yml").read_text().replace("/etc/prometheus/", "/mnt/")
    (rendered / "prometheus.yml").write_text(written)
    return rendered, authority


def test_the_store_of_a_site_is_taken_with_its_secrets_by_path(tmp_path: Path) -> None:
    folder, _ = sender(tmp_path, STORE)
    written = (folder / "prometheus.yml").read_text()

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


class Store:
    """A Prometheus that takes what is written to it, from clients with a certificate alone."""

    def __init__(self, folder: Path, port: int, authority: Authority) -> None:
        folder.mkdir()
        certificate, key = authority.issue("store", server=True)
        for name, source in {"server.crt": certificate, "server.key": key, "ca.crt": authority.ca}.items():
            (folder / name).write_bytes(source.read_bytes())
        (folder / "prometheus.yml").write_text("{}")
        served = {"cert_file": "/mnt/server.crt", "key_file": "/mnt/server.key", "client_ca_file": "/mnt/ca.crt"}
        web = {"tls_server_config": {**served, "client_auth_type": "RequireAndVerifyClientCert"}}
        (folder / "web.yml").write_text(json.dumps(web))
        self.part = Part(
            [
                *program("/usr/bin/prometheus", folder), "--web.enable-remote-write-receiver",
                "--web.config.file=/mnt/web.yml", f"--web.listen-address=127.0.0.1:{port}",
                "--config.file=/mnt/prometheus.yml", "--storage.tsdb.path=/mnt/data",
            ],
            folder / "log",
        )  # fmt: skip


def _values(opener: urllib.request.OpenerDirector, address: str, expression: str) -> list[dict[str, Any]]:
    """The series that it gives; none while nobody answers."""
    try:
        with opener.open(f"{address}/api/v1/query?query={quote(expression)}", timeout=10) as answer:
            return list(json.loads(answer.read())["data"]["result"])
    except OSError:
        return []


def _times(series: list[dict[str, Any]]) -> set[float]:
    return {at for one in series for at, _ in one["values"]}


@contextmanager
def _sending(folder: Path, port: int) -> Iterator[Part]:
    part = Part(
        [
            *program("/usr/bin/prometheus", folder), f"--web.listen-address=127.0.0.1:{port}",
            "--config.file=/mnt/prometheus.yml", "--storage.tsdb.path=/mnt/data",
        ],
        folder / "log",
    )  # fmt: skip
    part.start()
    with ended(part):
        yield part


@pytest.mark.slow
def test_a_store_that_is_killed_and_comes_back_lacks_nothing(tmp_path: Path) -> None:
    own, theirs = free_ports(2)
    address = f"https://127.0.0.1:{theirs}"
    asked = {name: STORE[name] for name in ("ca_file", "cert_file", "key_file")}
    folder, authority = sender(tmp_path, {"url": f"{address}/api/v1/write", **asked})
    store = Store(tmp_path / "store", theirs, authority)
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(*authority.issue("reader"))
    to_store = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    to_own, here = urllib.request.build_opener(), f"http://127.0.0.1:{own}"

    def sent(least: int) -> bool:
        found = _values(to_store, address, f'{READ.removesuffix("}")},replica="mon-1",fleet="pair"}}[5m]')
        return len(_times(found)) >= least

    def read_more() -> bool:
        found = _values(to_own, here, f"count_over_time({READ}[5m])")
        return bool(found) and int(found[0]["value"][1]) >= held

    store.part.start()
    with ended(store.part), _sending(folder, own):
        until("the store has numbers", lambda: sent(3), 120)
        store.part.kill()
        held = len(_times(_values(to_own, here, f"{READ}[5m]"))) + 10
        until("ten more were read while the store was away", read_more, 120)
        assert not _values(to_store, address, READ)
        here_then = _times(_values(to_own, here, f"{READ}[5m]"))
        store.part.start()

        def missing() -> set[float]:
            return here_then - _times(_values(to_store, address, f"{READ}[5m]"))

        until("the store has all that was read in between", lambda: not missing(), 120)
