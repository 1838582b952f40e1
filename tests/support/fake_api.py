"""A small Kubernetes API server in this process: objects of any kind with their status, JSON Patch with `test`,
conflicts, lists in pages, and watches that go on from a version, with bookmarks, until they are cut."""

from __future__ import annotations

import copy
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.server_helpers import QuietHandler, write_kubeconfig


class Refused(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def refusing(
    status: int, message: str, headers: dict[str, str] | None = None, *, of: str = ""
) -> Callable[[str], None]:
    """For `before_read` and `before_write`: refuses every path that has `of` in it."""

    def refuse(path: str) -> None:
        if of in path:
            raise Refused(status, message, headers)

    return refuse


def apply_patch(document: Any, patch: list[dict[str, Any]]) -> Any:
    """RFC 6902, as far as the admitter uses it; a `test` that does not hold is a 422, as the API server has it."""
    document = copy.deepcopy(document)
    for operation in patch:
        *parents, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        place = document
        for part in parents:
            place = place[part]
        if isinstance(place, list):
            _patch_list(place, operation["op"], last, operation.get("value"))
            continue
        if operation["op"] == "test" and place.get(last) != operation["value"]:
            raise Refused(422, "the server rejected our request due to an error in our request")
        if operation["op"] == "add":
            place[last] = operation["value"]
        if operation["op"] == "remove":
            if last not in place:
                raise Refused(422, "remove operation does not apply")
            del place[last]
    return document


def _patch_list(place: list[Any], op: str, last: str, value: Any) -> None:
    if op == "add" and last == "-":
        place.append(value)
    elif op == "replace" and last.isdigit() and int(last) < len(place):
        place[int(last)] = value
    else:
        raise Refused(422, f"{op} operation does not apply")


def apply_merge(document: Any, patch: dict[str, Any]) -> Any:
    """RFC 7386."""
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge(merged.get(key), value) if isinstance(value, dict) else value
    return merged


# What has a status that a write to the object itself leaves alone, and the other way round.
_SUBRESOURCES = ("status",)


class FakeApi:
    """The state of the cluster. `before_write` is called before each write, with its path, and may raise Refused.

    `objects` are by resource (nodes, pods, leases ...) and then by name, or NAMESPACE/NAME. `oldest` is the oldest
    version that a watch can go on from.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"nodes": {}, "certificatesigningrequests": {}}
        self.requests: list[tuple[str, str, str]] = []
        self.bodies: list[tuple[str, Any]] = []
        self.before_write: Callable[[str], None] = lambda path: None
        self.before_read: Callable[[str], None] = lambda path: None
        self.on_approval: Callable[[dict[str, Any]], None] = lambda csr: None
        self.unknown: set[str] = set()
        # Who asks, as a SelfSubjectReview has it.
        self.user = "muster:admin"
        self.page = 1000
        self.version = 100
        self.oldest = 0
        self.bookmark_s = 3600.0
        self._changes: list[tuple[int, str, str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._cut = 0
        api = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                sent = self.body()
                body = json.loads(sent) if sent else None
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                api.requests.append((self.command, parts.path, self.headers.get("Content-Type") or ""))
                if self.command != "GET":
                    api.bodies.append((parts.path, body))
                headers: dict[str, str] = {}
                try:
                    if "watch" in query:
                        self._stream(api.watch(parts.path, query))
                        return
                    status, answer = 200, api.answer(self.command, parts.path, query, body)
                except Refused as error:
                    status, answer = error.status, {"kind": "Status", "code": error.status, "message": str(error)}
                    headers = error.headers
                self.reply_json(status, answer, **{"Content-Type": "application/json", **headers})

            def _stream(self, events: Iterator[dict[str, Any]]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for event in events:
                        data = json.dumps(event).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    self.close_connection = True

            do_GET = do_PATCH = do_PUT = do_POST = do_DELETE = _serve

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes by name."""
        return self.objects["nodes"]

    @property
    def csrs(self) -> dict[str, dict[str, Any]]:
        """The certificate signing requests by name."""
        return self.objects["certificatesigningrequests"]

    def close(self) -> None:
        self.cut_watches()
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for this server."""
        return write_kubeconfig(path, f"http://127.0.0.1:{self.server.server_port}")

    def put_node(self, node: dict[str, Any]) -> None:
        """Add or change a node as somebody else would."""
        self.put("nodes", node)

    def put(self, resource: str, item: dict[str, Any]) -> None:
        """Add or change an object as somebody else would."""
        with self._changed:
            objects = self.objects.setdefault(resource, {})
            key = _key(item)
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            kind = "MODIFIED" if key in objects else "ADDED"
            objects[key] = item
            self._changes.append((self.version, resource, kind, copy.deepcopy(item)))
            self._changed.notify_all()

    def merge(self, resource: str, key: str, change: dict[str, Any]) -> None:
        """A merge patch of somebody else: what was written meanwhile stays."""
        with self._changed:
            self.put(resource, apply_merge(self.objects[resource][key], {"metadata": {}, **change}))

    def remove(self, resource: str, key: str) -> None:
        """Delete an object as somebody else would."""
        with self._changed:
            item = self.objects[resource].pop(key)
            self.version += 1
            gone = copy.deepcopy(item)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._changes.append((self.version, resource, "DELETED", gone))
            self._changed.notify_all()

    def cut_watches(self) -> None:
        """End all watches."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def restore(self, version: int, **annotations: str) -> None:
        """Be what an etcd that was restored from a backup is: at an older version, with older Nodes, watches cut."""
        with self._changed:
            self.version = version
            for node in self.objects["nodes"].values():
                node["metadata"] |= {"resourceVersion": str(version), "annotations": dict(annotations)}
            self._changes.clear()
        self.cut_watches()

    def writes(self) -> list[str]:
        """Paths of the writes asked for so far."""
        return [path for method, path, _ in self.requests if method != "GET"]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        if method != "GET":
            self.before_write(path)
        else:
            self.before_read(path)
        if path.startswith("/apis/") and path.count("/") == 3:  # what a version of a group has
            return {"kind": "APIResourceList", "resources": []}
        resource, namespace, name, subresource = self._place(path)
        if resource == "selfsubjectreviews":
            return {"status": {"userInfo": {"username": self.user}}}
        objects = self.objects.setdefault(resource, {})
        if method == "POST" and not name:
            return self._create(resource, namespace, body)
        if not name:
            return self._list(resource, namespace, query)
        key = f"{namespace}/{name}" if namespace else name
        if key not in objects:
            raise Refused(404, f'{resource} "{name}" not found')
        if method == "DELETE":
            wanted = ((body or {}).get("preconditions") or {}).get("resourceVersion")
            if wanted not in (None, objects[key]["metadata"]["resourceVersion"]):
                raise Refused(409, "Precondition failed: ResourceVersion")
        if method == "DELETE" or (method == "POST" and subresource == "eviction"):
            self.remove(resource, key)
            return {"kind": "Status", "status": "Success"}
        if method == "PUT" and subresource == "approval":
            return self._approve(objects[key], body)
        if method in ("PATCH", "PUT"):
            return self._write(method, resource, objects[key], subresource, body)
        return objects[key]

    def watch(self, path: str, query: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
        """What changes after a version, until the time is over or the watches are cut."""
        self.before_read(path)
        resource, namespace, _, _ = self._place(path)
        version, until = int(query["resourceVersion"][0]), time.monotonic() + float(query["timeoutSeconds"][0])
        return self._watched(resource, namespace, query, version, until, self._cut)

    def _watched(
        self, resource: str, namespace: str, query: dict[str, list[str]], version: int, until: float, cut: int
    ) -> Iterator[dict[str, Any]]:
        if version < self.oldest:
            yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
            return
        position = 0
        while time.monotonic() < until:
            news, bookmark = self._news(position, cut, until - time.monotonic())
            if self._cut != cut:
                return
            if bookmark:
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": bookmark}}}
            position += len(news)
            for changed, of, kind, item in news:
                if changed > version and of == resource and _selected(item, namespace, query):
                    yield {"type": kind, "object": item}

    def _news(self, position: int, cut: int, left_s: float) -> tuple[list[tuple[int, str, str, dict[str, Any]]], str]:
        """The changes from this one on, once there are any; the version where it is time for a bookmark, or to end."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: position < len(self._changes) or self._cut != cut, min(self.bookmark_s, max(0.0, left_s))
            )
            return self._changes[position:], "" if came else str(self.version)

    def _place(self, path: str) -> tuple[str, str, str, str]:
        """Resource, namespace, name and subresource of a path."""
        words = path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        namespace = ""
        if words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        resource, name, subresource, *_ = [*words, "", ""]
        if resource in self.unknown:
            raise Refused(404, "the server could not find the requested resource")
        return resource, namespace, name, subresource

    def _list(self, resource: str, namespace: str, query: dict[str, list[str]]) -> dict[str, Any]:
        start = int(query.get("continue", ["0"])[0])
        with self._changed:
            items = [item for item in self.objects[resource].values() if _selected(item, namespace, query)]
            version = str(self.version)
        end = start + min(self.page, int(query.get("limit", ["1000"])[0]))
        token = str(end) if end < len(items) else ""
        return {"items": items[start:end], "metadata": {"continue": token, "resourceVersion": version}}

    def _create(self, resource: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{self.version}")
        if namespace:
            metadata["namespace"] = namespace
        if _key(body) in self.objects[resource]:
            raise Refused(409, "already exists")
        self.put(resource, body)
        return body

    def _write(self, method: str, resource: str, old: dict[str, Any], subresource: str, body: Any) -> dict[str, Any]:
        with self._changed:
            if method == "PATCH":
                new: dict[str, Any] = apply_patch(old, body) if isinstance(body, list) else apply_merge(old, body)
            else:
                if body["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
                    raise Refused(409, "the object has been modified")
                new = copy.deepcopy(body)
            # As the API server: a request to one subresource changes nothing of the other.
            if subresource in _SUBRESOURCES:
                new = {**old, "status": new["status"], "metadata": dict(new["metadata"])}
            elif "status" in old:
                new = {**new, "status": old["status"], "metadata": dict(new["metadata"])}
            self.put(resource, new)
            return new

    def _approve(self, old: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        if body["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Refused(409, "the object has been modified")
        old["status"] = {**old.get("status", {}), "conditions": body["status"]["conditions"]}
        self.put("certificatesigningrequests", old)
        self.on_approval(old)
        return old


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def _selected(item: dict[str, Any], namespace: str, query: dict[str, list[str]]) -> bool:
    if namespace and item["metadata"].get("namespace") != namespace:
        return False
    for term in filter(None, query.get("fieldSelector", [""])[0].split(",")):
        field, wanted, value = term.partition("!=" if "!=" in term else "=")
        place: Any = item
        for part in field.split("."):
            place = (place or {}).get(part)
        if ((place or "") == value) == (wanted == "!="):
            return False
    labels = item["metadata"].get("labels") or {}
    terms = [term.partition("=") for term in filter(None, query.get("labelSelector", [""])[0].split(","))]
    return all(labels.get(key) == value for key, _, value in terms)
