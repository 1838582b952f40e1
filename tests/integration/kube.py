"""A real etcd and kube-apiserver on loopback, with the roles' files (kube_files.py), for integration tests."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import KubeApi, admissions_path
from gpu_burnin.admission.objects import write_objects
from gpu_burnin.api.crd import definitions
from gpu_burnin.api.heartbeat import heartbeats_path
from gpu_burnin.api.names import PROVISIONER_USER, Names
from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.system.files import write_atomic
from tests.integration.kube_files import policy_hash, rbac_objects, write_configuration
from tests.support.authority import Authority
from tests.support.clocks import PATIENCE_S
from tests.support.server_helpers import write_kubeconfig

NO_BINARIES = "no etcd and kube-apiserver: set MUSTER_BINARIES, or fill the cache with `make lab`"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


def binaries() -> Path | None:
    """Directory with etcd and kube-apiserver ($MUSTER_BINARIES, else the lab's cache), None without them."""
    place = Path(os.environ.get("MUSTER_BINARIES", cache_dir() / "bin/current"))
    return place if all(os.access(place / name, os.X_OK) for name in ("etcd", "kube-apiserver")) else None


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass(frozen=True)
class Reply:
    """HTTP status, body (parsed where it is JSON, else the text under `message`), and the UID of its priority level."""

    status: int
    body: dict[str, Any]
    priority: str = ""

    @property
    def message(self) -> str:
        """The server's words."""
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class Client:
    """One identity's way to the API."""

    port: int
    context: ssl.SSLContext

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request; YAML for server-side apply is JSON here."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content_type, **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = {"message": text}
        priority = response.getheader("X-Kubernetes-PF-PriorityLevel-UID", "")
        return Reply(response.status, parsed if isinstance(parsed, dict) else {"message": text}, priority)

    def stream(self, path: str) -> Iterator[dict[str, Any]]:
        """The events of a watch, until the server ends it."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            for line in response:
                yield json.loads(line)
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()


@dataclass
class Part:
    """A process of the control plane, which may be killed and started again where it was."""

    command: Sequence[str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it; what it writes is added to the log."""
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(self.command, stdout=output, stderr=output)

    def kill(self) -> None:
        """End it as a lost machine does."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()


@dataclass(frozen=True)
class Server:
    """A running API server: `client(user, groups)` and `kubeconfig(user, groups)` act as anyone."""

    port: int
    directory: Path
    authority: Authority
    etcd: Part
    apiserver: Part

    def wait_ready(self) -> None:
        """Until the API server answers. Raises RuntimeError when it has ended, and TimeoutError."""
        root = self.client("root", ["system:masters"])

        def ready() -> bool:
            running = self.apiserver.running
            if running is not None and running.poll() is not None:
                raise RuntimeError(
                    f"kube-apiserver ended with {running.returncode}: {self.apiserver.log.read_text()[-2000:]}"
                )
            try:
                return root.request("GET", "/readyz").status == 200
            except OSError:
                return False

        until("the API server's readiness", ready)

    @property
    def policies(self) -> Path:
        """The directory of the static policies."""
        return self.directory / "admission/static"

    def policy_files(self) -> dict[str, str]:
        """The static policies on the disk, by file name."""
        return {path.name: path.read_text() for path in self.policies.iterdir()}

    def load(self, files: Mapping[str, str]) -> None:
        """Have these policy files and no others; returns once the server says that it has loaded them."""
        for name in self.policy_files().keys() - files.keys():
            (self.policies / name).unlink()
        for name, content in files.items():
            write_atomic(self.policies / name, content.encode())
        until("the loading of the policies", lambda: self.loaded_hash() == policy_hash(self.policies), 60)

    def client(self, user: str | None, groups: Sequence[str] = ()) -> Client:
        """An identity by client certificate; None is anonymous."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if user is not None:
            context.load_cert_chain(*self.authority.issue(user, groups))
        return Client(self.port, context)

    def kubeconfig(self, user: str, groups: Sequence[str] = (), *, ended: bool = False) -> Path:
        """A kubeconfig file for that identity; its certificate may have ended."""
        certificate, key = self.authority.issue(user, groups, ended=ended)
        user_files = {"client-certificate": str(certificate), "client-key": str(key)}
        cluster = {"certificate-authority": str(self.authority.ca)}
        path = certificate.with_suffix(".kubeconfig")
        return write_kubeconfig(path, f"https://127.0.0.1:{self.port}", user_files, **cluster)

    def loaded_hash(self) -> str:
        """The hash of the policies that the server says it has loaded."""
        text = self.client("root", ["system:masters"]).request("GET", "/metrics").message
        for line in text.splitlines():
            if line.startswith("apiserver_manifest_admission_config_controller_last_config_info{"):
                return line.split('hash="')[2].split('"')[0]
        return ""


def until(what: str, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition. Raises TimeoutError."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.1)


@contextmanager
def ended(*parts: Part) -> Iterator[None]:
    """These processes end with the block."""
    try:
        yield
    finally:
        for part in reversed(parts):
            if part.running is not None:
                part.running.terminate()
                try:
                    part.running.wait(20)
                except subprocess.TimeoutExpired:
                    part.kill()


def apply_ledger(server: Server) -> None:
    """Define the fleet's kinds, as the provisioner does; returns once they are served. Raises RuntimeError."""
    provisioner = server.client(PROVISIONER_USER)
    names = Names()
    for made in definitions(names):
        reply = provisioner.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
        if reply.status != 201:
            raise RuntimeError(f"{made['metadata']['name']}: {reply.message}")
    for path in (admissions_path(names), heartbeats_path(names)):
        until(f"{path}'s being served", lambda: provisioner.request("GET", path).status == 200)  # noqa: B023


def _of_the_fleet(directory: Path) -> list[str]:
    return [
        "--feature-gates=ManifestBasedAdmissionControlConfig=true",
        f"--admission-control-config-file={directory / 'admission/admission.yaml'}",
        f"--authentication-config={directory / 'authentication.yaml'}",
        f"--audit-policy-file={directory / 'audit-policy.yaml'}",
        f"--audit-log-path={directory / 'audit.log'}",
        f"--encryption-provider-config={directory / 'encryption.yaml'}",
    ]


@contextmanager
def api_server(
    directory: Path,
    *flags: str,
    etcd_flags: Sequence[str] = ("--unsafe-no-fsync",),
    command: Callable[[Sequence[str]], Sequence[str]] = list,
    foreign: bool = False,
    names: Sequence[str] = (),
) -> Iterator[Server]:
    """etcd and kube-apiserver, with further flags, ready and with the fleet's RBAC, until the block ends.

    `foreign`: as others would build it, with nothing of the fleet: no static policies, no roles, no namespace.
    `command` gives what is run in the place of the server's words; `names` are other addresses that it is reached by.
    Raises FileNotFoundError without the binaries and TimeoutError when they do not start.
    """
    place = binaries()
    if place is None:
        raise FileNotFoundError(NO_BINARIES)
    client_port, peer_port, port = free_ports(3)
    write_configuration(directory)
    pki = directory / "pki"
    pki.mkdir()
    authority = Authority(pki)
    certificate, key = authority.issue("kube-apiserver", server=True, names=names)
    etcd_url = f"http://127.0.0.1:{client_port}"
    peer_url = f"http://127.0.0.1:{peer_port}"
    etcd = [
        str(place / "etcd"),
        "--name=test",
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=test={peer_url}",
        *etcd_flags,
    ]
    apiserver = [
        str(place / "kube-apiserver"),
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--etcd-servers={etcd_url}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={authority.ca}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--service-cluster-ip-range=198.19.128.0/20",
        "--authorization-mode=Node,RBAC",
        "--enable-bootstrap-token-auth=true",
        "--allow-privileged=true",
        "--enable-admission-plugins=NodeRestriction",
        "--endpoint-reconciler-type=none",
        *(() if foreign else _of_the_fleet(directory)),
        *flags,
    ]
    server = Server(
        port,
        directory,
        authority,
        Part(etcd, directory / "etcd.log"),
        Part(command(apiserver), directory / "apiserver.log"),
    )
    with ended(server.etcd, server.apiserver):
        server.etcd.start()
        server.apiserver.start()
        server.wait_ready()
        root = KubeApi(server.kubeconfig("root", ["system:masters"]))
        if foreign:
            yield server
            return
        write_objects(rbac_objects(), root, lambda: root, apply=True)
        yield server


def beside(first: Server) -> Server:
    """A second API server with files of its own on the same etcd."""
    (port,) = free_ports(1)
    own = {
        "--secure-port": str(port),
        "--audit-log-path": str(first.directory / "audit-2.log"),
        "--encryption-provider-config": str(first.directory / "encryption-2.yaml"),
    }
    (first.directory / "encryption-2.yaml").write_text((first.directory / "encryption.yaml").read_text())
    words = [word.partition("=") for word in first.apiserver.command]
    command = [f"{name}={own.get(name, value)}" if equals else name for name, equals, value in words]
    part = Part(command, first.directory / "apiserver-2.log")
    return Server(port, first.directory, first.authority, first.etcd, part)
