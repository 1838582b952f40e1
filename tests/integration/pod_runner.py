"""Kubelets in one thread: the bound pods of a namespace run as processes here, and their logs are served as kubelet's.

What is left out is the container: image, user and network are this machine's.
"""

from __future__ import annotations

import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_burnin.api.names import Names
from gpu_burnin.system.files import write_atomic
from tests.integration.jobs_stack import Jobs
from tests.integration.kube import STRATEGIC_PATCH, free_ports
from tests.support.launched_pod import PodProcess, field_of, lay_out

_LOOK_S = 0.2


@dataclass
class _Pod:
    name: str
    node: str
    made: PodProcess
    process: subprocess.Popen[bytes]
    lines: list[str] = field(default_factory=list)
    complete: bool = False
    told_to_end: bool = False
    reported: bool = False


@dataclass
class Runner:
    """The pods that run, by UID. A node in `dead` has lost its power: what ran there is never heard of again."""

    jobs: Jobs
    namespace: str
    directory: Path
    log_port: int
    pods: dict[str, _Pod] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    failed: list[BaseException] = field(default_factory=list)
    _master_port: int = field(default_factory=lambda: free_ports(1)[0])

    def kill_node(self, node: str) -> None:
        """Its power is gone."""
        self.dead.add(node)
        for pod in self.pods.values():
            if pod.node == node:
                pod.process.kill()

    def look(self) -> None:
        """What kubelets do once: start, end and report."""
        found = {pod["metadata"]["uid"]: pod for pod in self.jobs.pods(self.namespace)}
        for uid, pod in found.items():
            node = pod["spec"].get("nodeName")
            if node is None or node in self.dead:
                continue
            ends = "deletionTimestamp" in pod["metadata"]
            if uid not in self.pods and not ends and pod["status"]["phase"] == "Pending":
                self._start(uid, pod)
            elif uid not in self.pods and ends:
                self.jobs.gone(self.namespace, pod["metadata"]["name"])
            elif uid in self.pods:
                self._keep(self.pods[uid], pod, ends=ends)

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        [name] = {v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v}
        reply = self.jobs.root.request("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        if reply.status == 404:
            return  # it waits in ContainerCreating
        made = lay_out(self.directory / uid, pod, reply.body)
        process = made.start(MASTER_PORT=str(self._master_port))
        ours = _Pod(pod["metadata"]["name"], pod["spec"]["nodeName"], made, process)
        self.pods[uid] = ours
        threading.Thread(target=_read, args=(ours,), daemon=True).start()
        self._report(ours, "Running", {"running": {"startedAt": _now()}})

    def _keep(self, ours: _Pod, pod: dict[str, Any], *, ends: bool) -> None:
        leave = field_of(pod, f"metadata.annotations['{Names().leave}']")
        if ours.made.node_leave.read_text() != leave:
            # As kubelet does, which puts another file in its place: the pod may just be reading it.
            write_atomic(ours.made.node_leave, leave.encode())
        code = ours.process.poll()
        if code is None:
            if ends and not ours.told_to_end:
                ours.told_to_end = True
                ours.process.send_signal(signal.SIGTERM)
            return
        if not ours.complete:
            return
        if not ours.reported:
            ours.reported = True
            code = code if code >= 0 else 128 - code
            note = ours.made.termination_log
            message = note.read_text() if note.exists() else ""
            ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
            self._report(ours, "Failed" if code else "Succeeded", {"terminated": ended})
        elif ends:
            self.jobs.gone(self.namespace, ours.name)

    def _report(self, ours: _Pod, phase: str, state: dict[str, Any]) -> None:
        ready = phase == "Running"
        truth = "True" if ready else "False"
        container = {"name": "node", "image": "x", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        conditions = [{"type": kind, "status": truth} for kind in ("Ready", "ContainersReady")]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        kubelet = self.jobs.server.client(f"system:node:{ours.node}", ["system:nodes"])
        path = f"/api/v1/namespaces/{self.namespace}/pods/{ours.name}/status"
        reply = kubelet.request("PATCH", path, {"status": status}, STRATEGIC_PATCH)
        assert reply.status in (200, 404), reply.message

    def log_of(self, name: str) -> _Pod | None:
        """The pod of a name, the newest."""
        return next((pod for pod in reversed(self.pods.values()) if pod.name == name), None)

    def has_logs(self, node: str) -> None:
        """Have the API server ask here for the logs of a node's pods."""
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.log_port}},
        }
        kubelet = self.jobs.server.client(f"system:node:{node}", ["system:nodes"])
        reply = kubelet.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, STRATEGIC_PATCH)
        assert reply.status == 200, reply.message


def _read(pod: _Pod) -> None:
    assert pod.process.stdout is not None
    for line in pod.process.stdout:
        pod.lines.append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z {line.decode()}")
    pod.complete = True


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


@contextmanager
def pod_runner(jobs: Jobs, namespace: str, directory: Path) -> Iterator[Runner]:
    """Run the namespace's pods until the block ends. Raises what a kubelet could not do."""
    [port] = free_ports(1)
    runner = Runner(jobs, namespace, directory, port)
    stop = threading.Event()

    def keep() -> None:
        try:
            while not stop.wait(_LOOK_S):
                runner.look()
        except BaseException as error:
            runner.failed.append(error)

    server = _log_server(runner, port)
    threads = [threading.Thread(target=keep), threading.Thread(target=server.serve_forever, args=(0.1,))]
    for thread in threads:
        thread.start()
    try:
        yield runner
    finally:
        stop.set()
        server.shutdown()
        for thread in threads:
            thread.join()
        server.server_close()
        for pod in runner.pods.values():
            pod.process.kill()
            pod.process.wait()
    if runner.failed:
        raise runner.failed[0]


def _log_server(runner: Runner, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            options = {key: values[0] for key, values in parse_qs(parts.query).items()}
            pod = runner.log_of(parts.path.split("/")[3])
            if pod is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            tail = options.get("tailLines")
            sent = max(0, len(pod.lines) - int(tail)) if tail else 0
            while True:
                complete = pod.complete
                for line in pod.lines[sent:]:
                    self.wfile.write(line.encode())
                    sent += 1
                self.wfile.flush()
                if complete or options.get("follow") != "true":
                    return
                time.sleep(_LOOK_S / 2)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*runner.jobs.server.authority.issue("kubelet", server=True))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
