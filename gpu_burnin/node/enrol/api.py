"""The API server as a machine with a token knows it: its own NodeEnrolment, and its certificate request.

Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from gpu_burnin.api.enrolment import (
    Claim,
    Enrolment,
    EnrolmentError,
    Handed,
    claim_patch,
    enrolments_path,
    parse_enrolment,
    request_name,
)
from gpu_burnin.errors import EXIT_FAIL
from gpu_burnin.node.api import FINAL, NOT_FOUND, REQUEST_TIMEOUT_S, UNAUTHORIZED, ApiRefused, NotYet, message_of
from gpu_burnin.settings.config import PublishConfig
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.files import parse_json

_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_CONFLICT = 409


class Api(Protocol):
    """What enrolling asks of the cluster. Each raises NotYet, ApiRefused and EnrolmentError."""

    def enrolment(self) -> Enrolment:
        """The node's."""

    def say(self, claim: Claim, signature: str) -> None:
        """Who this machine is."""

    def request(self) -> dict[str, Any] | None:
        """The certificate request of this token, None where there is none."""

    def ask(self, request: bytes) -> None:
        """For the certificate."""


class TokenApi:
    """As who has the token."""

    def __init__(self, publish: PublishConfig, handed: Handed) -> None:
        self._publish, self._handed = publish, handed

    def enrolment(self) -> Enrolment:
        """See Api."""
        return parse_enrolment(self._json("GET", enrolments_path(self._publish.names, self._handed.node)))

    def say(self, claim: Claim, signature: str) -> None:
        """See Api."""
        path = enrolments_path(self._publish.names, self._handed.node)
        self._json("PATCH", path, claim_patch(claim, signature))

    def request(self) -> dict[str, Any] | None:
        """See Api."""
        try:
            return self._json("GET", f"{_CSRS}/{quote(request_name(self._handed.token), safe='')}")
        except NotYet as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def ask(self, request: bytes) -> None:
        """See Api."""
        spec = {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "request": base64.b64encode(request).decode(),
            "usages": ["digital signature", "client auth"],
        }
        kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
        made = {**kind, "metadata": {"name": request_name(self._handed.token)}, "spec": spec}
        try:
            self._json("POST", _CSRS, made)
        except NotYet as error:
            # Somebody has made it meanwhile: whose it is shows when it is read.
            if error.status != _CONFLICT:
                raise

    def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        server, node = self._publish.server, self._handed.node
        headers = {"Accept": "application/json", "Authorization": f"Bearer {self._handed.bearer}"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        connection = self._connect()
        try:
            connection.request(method, path, None if body is None else canonical_json(body), headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotYet(f"{server} does not answer ({error or type(error).__name__})") from error
        finally:
            connection.close()
        if status == UNAUTHORIZED:
            raise ApiRefused(
                f"{node}: {server} does not take this machine's token: it has ended, was taken back, or is of another "
                f"fleet; hand the machine another one (muster image token {node})",
                status,
            )
        if status in FINAL:
            raise ApiRefused(f"{node}: {server} refused {method}: {message_of(content)}", status)
        if status not in (200, 201):
            raise NotYet(f"{server} answered {status}: {message_of(content)}", status)
        try:
            document = parse_json(content)
        except ValueError as error:
            raise NotYet(f"{server} did not answer in JSON ({error})") from error
        if not isinstance(document, dict):
            raise NotYet(f"{server} did not answer with an object")
        return document

    def _connect(self) -> http.client.HTTPSConnection:
        publish, node = self._publish, self._handed.node
        parts = urlsplit(publish.server)
        if parts.scheme != "https" or not parts.hostname:
            raise EnrolmentError(
                f"{node}: publish.server is {publish.server!r}; set it to https://ADDRESS:PORT in the image"
            )
        try:
            # Without the authority's certificate the token would be told to whoever answers.
            context = ssl.create_default_context(cafile=str(publish.ca))
        except (OSError, ssl.SSLError) as error:
            raise EnrolmentError(
                f"{node}: cannot load publish.ca {publish.ca} ({error}); build the image again"
            ) from error
        return http.client.HTTPSConnection(
            parts.hostname, parts.port or 443, timeout=REQUEST_TIMEOUT_S, context=context
        )


def refused(sentence: str) -> EnrolmentError:
    """This machine is not let in, and waiting does not change that: exit code 1."""
    return EnrolmentError(sentence, EXIT_FAIL)
