"""Who did what, from lines of audit logs: in memory, in copies and over SSH."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.fleet.jobs import audit_logs, who_text
from gpu_burnin.fleet.jobs.deeds import Deed, Deeds, deed_of
from gpu_burnin.fleet.jobs.members import members
from gpu_burnin.fleet.jobs.rights import Grant, Holder
from gpu_burnin.fleet.jobs.who import Who
from gpu_burnin.fleet.model import Target
from gpu_burnin.system import known_hosts as kh
from tests.support.authority import Authority
from tests.support.ssh_server import StartServer

pytest_plugins = ["tests.support.ssh_fixtures"]
SINCE = datetime(2026, 1, 1, tzinfo=UTC)


def event(
    verb: str, resource: str, name: str = "", *, code: int = 200, minute: int = 0, **fields: Any
) -> dict[str, Any]:
    """An entry of vision's, of alice unless told."""
    resource, _, part = resource.partition("/")
    about = {"namespace": "vision", "resource": resource, "subresource": part, "name": name}
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "requestURI": f"/api/v1/namespaces/vision/{resource}",
        "user": {"username": "alice"},
        "sourceIPs": ["192.0.2.7"],
        "objectRef": about,
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"2026-01-01T00:{minute:02d}:00.000000Z",
        **fields,
    }


def did(entry: dict[str, Any]) -> str | None:
    deed = deed_of(entry, "vision")
    return deed.did if deed else None


def line(**fields: Any) -> bytes:
    return json.dumps(event("create", "jobs", **fields), separators=(",", ":")).encode() + b"\n"


STARTED = {"stage": "ResponseStarted", "code": 101}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            event("get", "pods/exec", "p", requestURI="/x/exec?command=cat&command=%2Fa+b", **STARTED),
            "exec in pods/p: cat /a b",
        ),
        (event("create", "pods/attach", "p", **STARTED), "attached to pods/p"),
        (event("create", "pods/portforward", "p", **STARTED), "port-forward to pods/p"),
        (event("get", "pods/exec", "p", code=101), None),
        (event("get", "pods/exec", "p", stage="ResponseStarted", code=400), None),
        (event("patch", "pods/ephemeralcontainers", "p"), "added a container to pods/p"),
        (event("get", "secrets", "s"), "get secrets/s"),
        (event("list", "secrets"), "list secrets"),
        (event("create", "secrets", "s"), "created secrets/s"),
        (event("create", "jobs"), "created jobs"),
        (event("delete", "jobs", "j"), "deleted jobs/j"),
        (event("deletecollection", "pods"), "deleted all pods"),
        (event("create", "pods/eviction", "p"), "evicted pods/p"),
        (event("create", "serviceaccounts/token", "a"), "created serviceaccounts/a/token"),
        (event("patch", "rolebindings", "r"), "changed rolebindings/r"),
        (event("patch", "jobs", "j"), None),
        (event("get", "pods", "p"), None),
        (event("create", "jobs", code=422), None),
        (event("create", "pods", user={"username": "system:serviceaccount:kube-system:job-controller"}), None),
        (event("create", "workloads", user={"username": "muster:kueue"}), None),
        (event("list", "pods", code=403), "list pods"),
        (event("create", "pods", code=403, user={"username": "system:serviceaccount:kube-system:x"}), "create pods"),
        ({**event("create", "jobs"), "objectRef": {"namespace": "audio", "resource": "jobs"}}, None),
        ({**event("create", "jobs"), "objectRef": None}, None),
    ],
)
def test_what_matters_in_words(entry: dict[str, Any], words: str | None) -> None:
    assert did(entry) == words


def test_a_refusal_has_the_policy_and_its_words() -> None:
    failures = [{"message": "Jobs name a queue", "policy": "muster-team-jobs.static.k8s.io"}]
    notes = {"validation.policy.admission.k8s.io/validation_failure": json.dumps(failures)}
    deed = deed_of(event("create", "jobs", code=403, annotations=notes), "vision")
    assert deed is not None and deed.refused == "muster-team-jobs.static.k8s.io: Jobs name a queue"
    said = {"code": 403, "message": 'pods "p" is forbidden: violates PodSecurity "restricted:latest": x'}
    deed = deed_of(event("create", "pods", responseStatus=said), "vision")
    assert deed is not None and "violates PodSecurity" in deed.refused
    acted = {"impersonatedUser": {"username": "bob"}}
    deed = deed_of(event("list", "secrets", **acted), "vision")
    assert deed is not None and deed.acted_as == "bob" and deed.refused == ""


def test_the_same_is_folded_the_newest_kept_and_garbage_counted() -> None:
    deeds = Deeds("vision", SINCE, most=3)
    for minute in (5, 2, 9):
        deeds.take(line(minute=minute))
    [one] = deeds.newest_first()
    assert (one.count, one.at.minute, one.first.minute) == (3, 9, 2)
    for bad in (b"\n", b"[]\n", b'{"objectRef": 3}\n', line()[:40], b"\xff\n", b"[" * 100_000):
        deeds.take(bad)
    assert deeds.unread == 6
    for minute in range(20, 40):
        deeds.take(line(name=f"j{minute}", minute=minute))
    assert [deed.did for deed in deeds.newest_first()] == ["created jobs/j39", "created jobs/j38", "created jobs/j37"]
    assert deeds.left_out == 18
    late = Deeds("vision", SINCE + timedelta(hours=1))
    late.take(line())
    assert late.newest_first() == []


def test_copies_are_read_also_packed(tmp_path: Path) -> None:
    other = line().replace(b"vision", b"audio")
    (tmp_path / "audit.log").write_bytes(line() + other)
    (tmp_path / "old.gz").write_bytes(gzip.compress(line() + other))
    for name in ("audit.log", "old.gz"):
        assert list(audit_logs.of_file(tmp_path / name, "vision")) == [line()]
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    with pytest.raises(audit_logs.NotRead, match=r"bad\.gz: the audit log cannot be read"):
        list(audit_logs.of_file(tmp_path / "bad.gz", "vision"))


def test_logs_are_filtered_on_their_host(
    tmp_path: Path, identity: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself runs here, on files that look like those of an API server."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "audit.log").write_bytes(line(name="new") + line().replace(b"vision", b"audio"))
    (logs / "audit-2026.log").write_bytes(line(name="rotated"))
    (logs / "audit-2020.log").write_bytes(line(name="old"))
    subprocess.run(["touch", "-d", "2020-01-01", str(logs / "audit-2020.log")], check=True)
    (logs / "other.log").write_bytes(line(name="other"))
    monkeypatch.setattr(audit_logs, "FOLDER", str(logs))
    commands = []

    def execute(command: str) -> tuple[int, bytes, bytes]:
        commands.append(command)
        done = subprocess.run(shlex.split(command), capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    server = start_server(execute=execute)
    target = Target("api-1", "127.0.0.1", server.port, "root", identity)
    pinned = tmp_path / "known_hosts"
    pinned.write_text(f"[127.0.0.1]:{server.port} {server.host_key.get_name()} {server.host_key.get_base64()}\n")
    known = kh.load(pinned)
    found = list(audit_logs.of_host(target, known, "vision", SINCE))
    assert sorted(json.loads(one)["objectRef"]["name"] for one in found) == ["new", "rotated"]
    assert list(audit_logs.of_host(target, known, "nobody", SINCE)) == []
    monkeypatch.setattr(audit_logs, "FOLDER", str(tmp_path / "none"))
    with pytest.raises(audit_logs.NotRead, match=r"api-1: .* cannot be read to its end \(find: "):
        list(audit_logs.of_host(target, known, "vision", SINCE))
    with pytest.raises(audit_logs.NotRead, match="api-1: the audit log cannot be read"):
        list(audit_logs.of_host(target, kh.load(tmp_path / "nothing-pinned"), "vision", SINCE))


def test_members_are_those_of_the_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name, groups in (("alice", ["muster:users"]), ("bob", ["muster:users"]), ("admin", ["muster:admins"])):
        certificate, _ = authority.issue(name, groups)
        (tmp_path / f"{name}.kubeconfig").write_text(
            json.dumps({"users": [{"name": name, "user": {"client-certificate": str(certificate)}}]})
        )
    (tmp_path / "bad.kubeconfig").write_text("users: []")
    known, notes = members(tmp_path)
    assert known == {"muster:users": ["alice", "bob"], "muster:admins": ["admin"]}
    assert len(notes) == 1 and "bad.kubeconfig: no client certificate can be read" in notes[0]


def test_text() -> None:
    own = (Grant("RoleBinding muster:team-members", "ClusterRole muster:team-member", ("run jobs",), False),)
    at = SINCE + timedelta(minutes=3)
    who = Who(
        "vision",
        SINCE,
        (
            Holder("user", "alice", own),
            Holder("group", "oidc-vision", own),
            Holder("group", "muster:admins", own, ("admin",)),
            Holder("user", "muster:kueue", own, part=True),
        ),
        (
            Deed(at, SINCE, 2, "alice", "create pods", "192.0.2.7", "", "muster-team-pods: no"),
            Deed(SINCE, SINCE, 1, "root", "get secrets/s", "", "bob"),
        ),
        ("api-1",),
        7,
        ("api-2: the audit log cannot be read",),
    )
    said = who_text.render(who, 120)
    for words in (
        "user alice",
        "run jobs (ClusterRole muster:team-member); members are not known here",
        "members: admin",
        "1 part of Kubernetes and the fleet besides: --all",
        "REFUSED create pods from 192.0.2.7 (2 times since 2026-01-01T00:00:00Z): muster-team-pods: no",
        "root as bob",
        "7 older ones are left out",
        "not read: api-2",
    ):
        assert words in " ".join(said.split()), said
    assert "muster:kueue" not in said and "muster:kueue" in who_text.render(who, 120, all_of_them=True)
    nobody = Who("vision", SINCE, (), (), (), 0, ())
    assert "nobody" in who_text.render(nobody, 80) and "--api HOST" in who_text.render(nobody, 120)
