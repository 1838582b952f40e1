"""What a client without a certificate reaches on a real API server: its health, and nothing else.

Only here: each path that Kubernetes or people open to everybody, by each verb, on a real API server.
"""

from __future__ import annotations

import http.client

import pytest

from .kube import APPLY, Client, Server

HEALTH = ("/livez", "/readyz", "/healthz")
BALANCER = "/readyz?exclude=etcd-override-0&exclude=etcd-override-readiness-0"
VERBS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
# What Kubernetes itself gives to everybody (system:public-info-viewer, system:discovery), what it serves beside its
# API, what people open for joining nodes, and ways to write a health path that are another path.
CLOSED = (
    "/",
    "/version",
    "/version/",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/apps/v1",
    "/openapi/v2",
    "/openapi/v3",
    "/.well-known/openid-configuration",
    "/openid/v1/jwks",
    "/metrics",
    "/metrics/slis",
    "/logs",
    "/debug/pprof/",
    "/configz",
    "/flagz",
    "/statusz",
    "/api/v1/nodes",
    "/api/v1/nodes/gpu-1/proxy/pods",
    "/api/v1/secrets",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/kube-public/configmaps/cluster-info",
    "/apis/authentication.k8s.io/v1/tokenreviews",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/livez/",
    "/livez/ping",
    "/livez/etcd",
    "/readyz/etcd",
    "/healthz/etcd",
    "//livez",
    "/livez/../api/v1/secrets",
    "/livez%2f..%2fapi",
    "/livez;/api",
)


@pytest.fixture(scope="module")
def nobody(server: Server) -> Client:
    return server.client(None)


@pytest.mark.parametrize("path", [*HEALTH, BALANCER, *(f"{path}?verbose" for path in HEALTH)])
def test_health_is_told(nobody: Client, path: str) -> None:
    assert nobody.request("GET", path).status == 200


@pytest.mark.parametrize("path", HEALTH)
def test_health_can_only_be_read(nobody: Client, path: str) -> None:
    for verb in VERBS[1:]:
        reply = nobody.request(verb, path, {} if verb in ("POST", "PUT", "PATCH") else None)
        assert reply.status == 403, (verb, reply)


@pytest.mark.parametrize("path", CLOSED)
def test_nothing_else_answers(nobody: Client, path: str) -> None:
    for verb in VERBS:
        body = {"kind": "x"} if verb in ("POST", "PUT", "PATCH") else None
        reply = nobody.request(verb, path, body, APPLY if verb == "PATCH" else "application/json")
        assert reply.status == 401, (verb, reply)
        assert verb == "HEAD" or reply.message == "Unauthorized", (verb, reply)


def test_nobody_becomes_somebody_by_what_he_says_of_himself(nobody: Client) -> None:
    claims = (
        {"Authorization": "Bearer guessed"},
        {"Authorization": "Basic YWRtaW46YWRtaW4="},
        {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"},
        {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
    )
    for headers in claims:
        reply = nobody.request("GET", "/api/v1/secrets", headers=headers)
        assert reply.status == 401, (headers, reply)
    reply = nobody.request("GET", "/livez", headers={"Impersonate-User": "admin"})
    assert reply.status == 403, reply


def test_nothing_is_served_without_tls(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (400, b"Client sent an HTTP request to an HTTPS server.\n")
    finally:
        connection.close()
