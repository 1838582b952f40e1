"""A small Kubernetes API server in this process: nodes, their status, CSRs; JSON Patch with `test`, conflicts."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml


class Refused(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def apply_patch(document: Any, patch: list[dict[str, Any]]) -> Any:
    """RFC 6902, as far as the admitter uses it; a `test` that does not hold is a 422, as the API server has it."""
    document = copy.deepcopy(document)
    for operation in patch:
        *parents, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        place = document
        for part in parents:
            place = place[part]
        if operation["op"] == "test" and place.get(last) != operation["value"]:
            raise Refused(422, "the server rejected our request due to an error in our request")
        if operation["op"] == "add":
            place[last] = operation["value"]
        if operation["op"] == "remove":
            if last not in place:
                raise Refused(422, "remove operation does not apply")
            del place[last]
    return document


class FakeApi:
    """The state of the cluster. `before_write` is called before each write, with its path, and may raise Refused."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.csrs: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.before_write: Callable[[str], None] = lambda path: None
        self.on_approval: Callable[[dict[str, Any]], None] = lambda csr: None
        self.page = 1000
        self.version = 100
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args: object) -> None:
                pass

            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                parts = urlsplit(self.path)
                api.requests.append((self.command, parts.path, self.headers.get("Content-Type") or ""))
                headers: dict[str, str] = {}
                try:
                    status, answer = 200, api.answer(self.command, parts.path, parse_qs(parts.query), body)
                except Refused as error:
                    status, answer = error.status, {"kind": "Status", "message": str(error)}
                    headers = error.headers
                data = json.dumps(answer).encode()
                self.send_response(status)
                for key, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_PUT = _serve

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for this server."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def put_node(self, node: dict[str, Any]) -> None:
        """Add or change a node as somebody else would."""
        self.version += 1
        node["metadata"]["resourceVersion"] = str(self.version)
        self.nodes[node["metadata"]["name"]] = node

    def writes(self) -> list[str]:
        """Paths of the writes asked for so far."""
        return [path for method, path, _ in self.requests if method != "GET"]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        words = path.strip("/").split("/")
        if method != "GET":
            self.before_write(path)
        if words[:3] == ["api", "v1", "nodes"]:
            return self._nodes(method, words[3:], query, body)
        if words[:4] == ["apis", "certificates.k8s.io", "v1", "certificatesigningrequests"]:
            return self._csrs(method, words[4:], query, body)
        raise Refused(404, f"{path} not found")

    def _list(self, objects: dict[str, dict[str, Any]], query: dict[str, list[str]]) -> dict[str, Any]:
        start = int(query.get("continue", ["0"])[0])
        items = list(objects.values())
        end = start + min(self.page, int(query["limit"][0]))
        token = str(end) if end < len(items) else ""
        return {"items": items[start:end], "metadata": {"continue": token}}

    def _nodes(self, method: str, words: list[str], query: dict[str, list[str]], body: Any) -> Any:
        if not words:
            return self._list(self.nodes, query)
        name, status = words[0], words[1:] == ["status"]
        if name not in self.nodes:
            raise Refused(404, f'nodes "{name}" not found')
        if method == "PATCH":
            old = self.nodes[name]
            new = apply_patch(old, body)
            # As the API server: a request to one subresource changes nothing of the other.
            kept = {"status": new["status"]} if status else {"status": old["status"]}
            self.put_node({**(old if status else new), **kept, "metadata": dict(new["metadata"])})
        return self.nodes[name]

    def _csrs(self, method: str, words: list[str], query: dict[str, list[str]], body: Any) -> Any:
        if not words:
            return self._list(self.csrs, query)
        old = self.csrs[words[0]]
        if method != "PUT" or words[1:] != ["approval"]:
            raise Refused(405, "only PUT of approval")
        if body["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Refused(409, "the object has been modified")
        self.version += 1
        old["status"] = {**old.get("status", {}), "conditions": body["status"]["conditions"]}
        old["metadata"]["resourceVersion"] = str(self.version)
        self.on_approval(old)
        return old
