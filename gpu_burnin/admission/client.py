"""The Kubernetes API as the admitter, the CSR approver and the fleet's command use it: raw JSON, explicit patches.

The kubernetes package reads the kubeconfig (certificates, tokens, plugins) and makes the connections; the requests are
plain, since its models of a whole Node cost ten times the memory and time of the JSON.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from kubernetes import client

from gpu_burnin.admission.kubeconfig import KubeconfigError, load
from gpu_burnin.admission.silence import remedy, words
from gpu_burnin.admission.token_file import TokenFile, token_file
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.api.names import Names
from gpu_burnin.errors import GpuBurninError

Object: TypeAlias = Mapping[str, Any]
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain"
JSON_PATCH = "application/json-patch+json"
# YAML, of which JSON is a part.
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
# An answer without what a patch's writer knows or does not need: of a Node 2 KiB instead of 10 or more.
METADATA_ONLY = f"{JSON_TYPE};as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON_TYPE}"
# The same of a page.
METADATA_PAGE = f"{JSON_TYPE};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, {JSON_TYPE}"
PAGE = 500
# So many nodes are read one by one in less time than a list of thousands takes.
ONE_BY_ONE = 32
CONNECTIONS = 16
REQUEST_TIMEOUT_S = (5.0, 30.0)
# 429 and 503 carry Retry-After (API priority and fairness); a request so answered was not carried out.
_RETRIES = 5
_BACKOFF_S = 0.2
# Bookmarks come every minute or so: a watch that is silent for longer is dead.
WATCH_SILENCE_S = 150.0
_QUOTAS = "resourcequotas"
# The answer to a path of no kind is no JSON; see _message.
_NO_PATH = "404 Not Found"
_NO_KIND = (
    ": it has no such kind; give the kubeconfig of another cluster, or bring Muster here: `muster attach`, site.yml"
)
NODES = "/api/v1/nodes"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


class ApiError(GpuBurninError):
    """The API server refused, or does not answer (`status` 0); the sentence holds its own words."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether it is that of an overloaded or lost API server, and not what it will go on refusing."""
        return self.status in (0, 429) or self.status >= 500


class NotFound(ApiError):
    """There is no such object, or no such resource."""


class Gone(ApiError):
    """The version to go on from is too old: list again."""


class Conflict(Exception):
    """The object has changed since it was read: read it again and decide again."""


class QuotaBusy(Conflict):
    """The server lost a race with itself as it counted a new object in its namespace's quota: nothing was made."""


def admissions_path(names: Names, name: str = "") -> str:
    """Where the NodeAdmissions are, or one of them."""
    base = f"/apis/{names.api_version}/nodeadmissions"
    return f"{base}/{quote(name, safe='')}" if name else base


def node_path(name: str) -> str:
    """Where one Node is."""
    return f"{NODES}/{quote(name, safe='')}"


class KubeApi:
    """The API as plain JSON, as the user that a kubeconfig names.

    `timeout_s` is for a connection, and for an answer. `before_write` is called last before each request that changes
    something, and may raise. `retries`: how often a request is sent again that an overloaded server did not carry out;
    0 where the caller has its own back-off.
    """

    def __init__(
        self,
        kubeconfig: Path | Mapping[str, Any],
        *,
        retries: int = _RETRIES,
        timeout_s: tuple[float, float] = REQUEST_TIMEOUT_S,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`kubeconfig`: a file, or a document with a secret that is to stand in none. Raises ApiError when it cannot
        be used."""
        configuration: Any = client.Configuration()
        configuration.connection_pool_maxsize = CONNECTIONS
        configuration.retries = urllib3.Retry(
            total=retries,
            connect=retries,
            read=0,
            status_forcelist=(429, 503) if retries else (),
            allowed_methods=None,
            backoff_factor=_BACKOFF_S,
            raise_on_status=False,
        )
        try:
            self._api: Any = load(kubeconfig, configuration)
        except KubeconfigError as error:
            name = "" if isinstance(kubeconfig, Mapping) else f" {kubeconfig}"
            raise ApiError(
                f"cannot use the kubeconfig{name} ({error}); give another with --kubeconfig or "
                "KUBECONFIG: site.yml writes an admin's to fleet_state_dir/kubeconfig/admin.kubeconfig, and of an "
                "attached cluster it is yours"
            ) from error
        if not isinstance(kubeconfig, Mapping) and (token := token_file(Path(kubeconfig))) is not None:
            configuration.refresh_api_key_hook = TokenFile(token)
        self.server = str(configuration.host).rstrip("/")
        # The pool itself: its manager would look it up anew for each request, which costs a tenth of a PATCH's time.
        self._pool: urllib3.HTTPConnectionPool = self._api.rest_client.pool_manager.connection_from_url(self.server)
        self._base_path = urlsplit(self.server).path
        self._timeout = urllib3.Timeout(connect=timeout_s[0], read=timeout_s[1])
        self._before_write = before_write
        self._quota_waits_s = tuple(_BACKOFF_S * 2**n for n in range(retries))
        self._streams: set[urllib3.BaseHTTPResponse] = set()
        self._hung_up = False

    # What all resources have.

    def get(self, path: str, what: str = "", *, answer: str = JSON_TYPE) -> Object:
        """One object. `answer`: the whole, or METADATA_ONLY. Raises NotFound and ApiError."""
        return self._json("GET", path, what or f"read {path}", answer=answer)

    def find(self, path: str, what: str = "") -> Object | None:
        """One object, or None when there is none."""
        try:
            return self.get(path, what)
        except NotFound:
            return None

    def items(self, path: str, what: str = "", *, answer: str = JSON_TYPE, **selectors: str) -> Iterator[Object]:
        """All objects, page by page. `selectors` are fieldSelector and labelSelector.

        `answer`: the whole, or METADATA_PAGE. Raises Gone where the next page is asked for after etcd was compacted,
        which happens every 5 minutes.
        """
        for page, _ in self.pages(path, what, answer=answer, **selectors):
            yield from page

    def pages(
        self, path: str, what: str = "", *, answer: str = JSON_TYPE, **selectors: str
    ) -> Iterator[tuple[list[Object], str]]:
        """Pages of objects, as the cluster is now, each with the version from which a watch goes on after the last."""
        options = {**selectors, "limit": str(PAGE)}
        while True:
            document = self._json("GET", f"{path}?{urlencode(options)}", what or f"list {path}", answer=answer)
            metadata = document.get("metadata") or {}
            yield document.get("items") or [], str(metadata.get("resourceVersion", ""))
            token = metadata.get("continue")
            if not token:
                return
            options["continue"] = token

    def version_of(self, path: str, what: str = "", **selectors: str) -> str:
        """The version that the cluster is at now, read from etcd itself."""
        document = self._json("GET", f"{path}?{urlencode({**selectors, 'limit': '1'})}", what or f"list {path}")
        return str((document.get("metadata") or {}).get("resourceVersion", ""))

    def watch(
        self, path: str, version: str, timeout_s: int, what: str = "", **selectors: str
    ) -> Iterator[tuple[str, Object]]:
        """Changes since `version` as (ADDED, MODIFIED, DELETED or BOOKMARK; object), until the server ends the stream.

        Raises Gone when that version is too old, ApiError when the stream breaks.
        """
        what = what or f"watch {path}"
        options = {**selectors, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        options["timeoutSeconds"] = str(timeout_s)
        timeout = urllib3.Timeout(connect=REQUEST_TIMEOUT_S[0], read=WATCH_SILENCE_S)
        response = self._send("GET", f"{path}?{urlencode(options)}", what, timeout=timeout, preload_content=False)
        for line in self._streamed(response, what):
            try:
                event = json.loads(line)
                kind, found = event["type"], event["object"]
            except (ValueError, KeyError) as error:
                raise self._silent(what, error) from error
            if kind == "ERROR":
                raise self._refused(found.get("code", 0), found.get("message", ""), what)
            yield kind, found

    def stream(self, path: str, what: str = "") -> Iterator[bytes]:
        """Lines of a text that may go on for days, such as a log that is followed, each when it has come.

        None of it is kept. Raises ApiError where it breaks, and where nothing comes for WATCH_SILENCE_S.
        """
        what = what or f"read {path}"
        timeout = urllib3.Timeout(connect=REQUEST_TIMEOUT_S[0], read=WATCH_SILENCE_S)
        yield from self._streamed(
            self._send("GET", path, what, answer="*/*", timeout=timeout, preload_content=False), what
        )

    def _streamed(self, response: urllib3.BaseHTTPResponse, what: str) -> Iterator[bytes]:
        self._streams.add(response)
        if self._hung_up:
            _hang_up(response)
        try:
            yield from _lines(response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(what, error) from error
        finally:
            self._streams.discard(response)
            _hang_up(response)
            response.close()

    def hang_up(self) -> None:
        """End all watches for good, from another thread: each raises ApiError there, one that begins later too."""
        self._hung_up = True
        for response in list(self._streams):
            _hang_up(response)

    def patch(self, path: str, patch: Patch, what: str = "", *, answer: str = JSON_TYPE) -> Object:
        """Apply a JSON Patch; raises Conflict when its `test` does not hold. `answer`: the whole, or METADATA_ONLY."""
        return self._json("PATCH", path, what or f"patch {path}", patch, JSON_PATCH, answer)

    def merge(self, path: str, document: Object, what: str = "") -> Object:
        """Apply a merge patch (RFC 7386): null takes a key away. Raises Conflict for a UID that is another one."""
        return self._json("PATCH", path, what or f"patch {path}", document, MERGE_PATCH)

    def create(self, path: str, document: Object, what: str = "") -> Object:
        """Create an object, or do what a subresource does. Raises Conflict when it is there."""
        what = what or f"create in {path}"
        for wait_s in self._quota_waits_s:
            try:
                return self._json("POST", path, what, document)
            except QuotaBusy:
                time.sleep(wait_s)
        return self._json("POST", path, what, document)

    def apply(self, path: str, document: Object, what: str = "") -> Object:
        """Apply an object (server side), as the path's query says. Raises Conflict and ApiError."""
        return self._json("PATCH", path, what or f"apply {path}", document, APPLY_PATCH)

    def text(self, path: str, what: str = "") -> str:
        """What a path that is no object says, such as /metrics."""
        response = self._send("GET", path, what or f"read {path}", answer=TEXT_TYPE, timeout=self._timeout)
        return response.data.decode(errors="replace")

    def replace(self, path: str, document: Object, what: str = "") -> Object:
        """Replace an object of the version that `document` has; raises Conflict when it has changed since."""
        return self._json("PUT", path, what or f"replace {path}", document)

    def delete(self, path: str, what: str = "", *, version: str = "") -> Object:
        """Delete an object. With its resourceVersion: raises Conflict when it has changed since."""
        only = {"preconditions": {"resourceVersion": version}} if version else None
        return self._json("DELETE", path, what or f"delete {path}", only)

    # Nodes and certificate signing requests.

    def nodes(self) -> dict[str, Node]:
        """All nodes by name."""
        return {node["metadata"]["name"]: node for node in self.items(NODES, "list the nodes")}

    def node(self, name: str) -> Node | None:
        """One node, or None when there is none of that name."""
        return self.find(node_path(name), f"read node {name}")

    def csrs(self) -> list[Object]:
        """All certificate signing requests, issued ones included."""
        return list(self.items(CSRS, "list the CSRs"))

    def put_csr_approval(self, csr: Object) -> Object:
        """Write the conditions of a CSR; raises Conflict when it has changed since it was read."""
        name = csr["metadata"]["name"]
        return self.replace(f"{CSRS}/{quote(name, safe='')}/approval", csr, f"approve CSR {name}")

    def _json(
        self,
        method: str,
        path: str,
        what: str,
        body: object = None,
        content_type: str = JSON_TYPE,
        answer: str = JSON_TYPE,
    ) -> Object:
        response = self._send(method, path, what, body, content_type, answer, timeout=self._timeout)
        try:
            document: Object = json.loads(response.data)
        except ValueError as error:
            raise self._silent(what, error) from error
        return document

    def _send(
        self,
        method: str,
        path: str,
        what: str,
        body: object = None,
        content_type: str = JSON_TYPE,
        answer: str = JSON_TYPE,
        **options: Any,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": answer}
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        try:
            if method != "GET":
                self._before_write()
            url = self._base_path + path
            response = self._pool.urlopen(method, url, body=data, headers=headers, redirect=False, **options)
            if response.status < 300:
                return response
            message = _message(response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(what, error) from error
        raise self._refused(response.status, message, what)

    def _refused(self, status: int, message: str, what: str) -> Exception:
        sentence = f"{self.server}: cannot {what}: {message}"
        if status == 409 and f" on {_QUOTAS} " in message:
            return QuotaBusy(sentence)
        # The API server answers a `test` that does not hold with 422, a lost race with 409.
        if status in (409, 422):
            return Conflict(sentence)
        if status == 404:
            return NotFound(f"{sentence}{_NO_KIND if message == _NO_PATH else ''}", status)
        if status == 410:
            return Gone(sentence, status)
        return ApiError(f"{sentence}; {_fix(status)}", status)

    def _silent(self, what: str, error: Exception) -> ApiError:
        return ApiError(f"{self.server}: cannot {what}: {words(error)}; {remedy(error)}")


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Lines of a stream, each when it has come."""
    rest = b""
    for chunk in response.stream():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)


def _hang_up(response: urllib3.BaseHTTPResponse) -> None:
    # Not release_conn, which would read on to the end of an endless stream.
    connection = getattr(response, "connection", None)
    sock = getattr(connection, "sock", None)
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _message(response: urllib3.BaseHTTPResponse) -> str:
    try:
        return str(json.loads(response.data)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status} {response.reason}"


def _fix(status: int) -> str:
    if status == 401:
        return (
            "the certificate or token in the kubeconfig has ended, or is of another cluster; get another (site.yml "
            "renews those of a fleet; of an attached cluster they are your provider's, those of pods kubelet's)"
        )
    if status == 403:
        return (
            "check whose kubeconfig it is, and what that user may do (site.yml writes the rights of a fleet, `muster "
            "attach` those of its own accounts)"
        )
    return "look at the API server's log"
