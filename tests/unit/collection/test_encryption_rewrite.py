"""muster.fleet.encryption_rewrite through the real ansible-playbook: what it writes, leaves and tells.

Only here: that what the module counts comes through Ansible as a result, with --check and without.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError, Gone, KubeApi
from gpu_burnin.admission.rewrite import Rewritten, count, rewrite
from tests.support.server_helpers import QuietHandler, listening, write_kubeconfig

Playbook = Callable[..., subprocess.CompletedProcess[str]]
# Of somebody who changed it meanwhile, and of one who removed it.
ENDINGS = {"changed": 409, "removed": 404}


class Api:
    """Secrets on two pages, of which two were touched since they were read.

    etcd is compacted as soon as somebody has written, and `compactions` times before that.
    """

    def __init__(self) -> None:
        self.names = [*(f"secret-{number}" for number in range(5)), *ENDINGS]
        self.written: list[str] = []
        self.compactions = 0
        self.answers: list[str] = []

    def answer(self, method: str, path: str, body: dict[str, Any], accept: str) -> tuple[int, dict[str, Any]]:
        name = path.rpartition("/")[2]
        if method == "PUT":
            assert body == self.secret(name)
            self.written += [] if name in ENDINGS else [name]
            return ENDINGS.get(name, 200), body
        if name in self.names:
            return 200, self.secret(name)
        self.answers.append(accept)
        items = [{"metadata": self.secret(name)["metadata"]} for name in self.names]
        if "limit=1" in path and "limit=500" not in path:
            return 200, {"items": items[:1], "metadata": {"remainingItemCount": len(items) - 1, "continue": "x"}}
        first = "continue" not in path
        if not path.startswith("/api/v1/secrets?"):
            return 404, {"message": "the server could not find the requested resource"}
        if not first and (self.written or self.compactions):
            self.compactions -= 1
            return 410, {"message": "The provided continue parameter is too old"}
        return 200, {"items": items[:4] if first else items[4:], "metadata": {"continue": "x"} if first else {}}

    @staticmethod
    def secret(name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "a", "resourceVersion": "7"}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key": name}}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """Served; its kubeconfig is in the temporary folder."""
    served = Api()

    class Handler(QuietHandler):
        def answer(self) -> None:
            body = json.loads(self.body() or b"{}")
            self.reply_json(*served.answer(self.command, self.path, body, self.headers["Accept"]))

        do_GET = do_PUT = answer

    with listening(Handler) as url:
        write_kubeconfig(tmp_path / "admin.kubeconfig", url)
        yield served


def test_each_object_is_counted_whether_it_was_written_or_left(api: Api, tmp_path: Path) -> None:
    told: list[int] = []
    client = KubeApi(tmp_path / "admin.kubeconfig")
    assert count(client, "secrets") == 7
    assert rewrite(client, "secrets", told.append) == Rewritten(written=5, left=2)
    assert told == [1] * 7
    assert api.written == [f"secret-{number}" for number in range(5)]
    # Values are in memory one at a time.
    assert len(api.answers) == 3 and all("as=PartialObjectMetadataList" in answer for answer in api.answers[1:])


def test_who_lists_while_etcd_is_compacted_lists_anew(api: Api, tmp_path: Path) -> None:
    api.compactions = 1
    assert rewrite(KubeApi(tmp_path / "admin.kubeconfig"), "secrets") == Rewritten(written=5, left=2)


def test_a_list_that_never_ends_is_told(api: Api, tmp_path: Path) -> None:
    api.compactions = 9
    with pytest.raises(Gone, match="cannot list secrets: The provided continue parameter is too old"):
        rewrite(KubeApi(tmp_path / "admin.kubeconfig"), "secrets")
    assert not api.written


def test_a_kind_that_is_not_there_is_named(api: Api, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="there is no resource secret; correct kube_apiserver_encrypted_resources"):
        rewrite(KubeApi(tmp_path / "admin.kubeconfig"), "secret")


@pytest.mark.slow
@pytest.mark.parametrize("check", [True, False])
def test_what_the_task_tells(api: Api, tmp_path: Path, ansible_playbook: Playbook, check: bool) -> None:
    given = {"kubeconfig": str(tmp_path / "admin.kubeconfig"), "resources": ["secrets"]}
    task = {"muster.fleet.encryption_rewrite": given, "check_mode": check}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    done = ansible_playbook("play.yml", "-v")
    (found,) = re.findall(r"changed: \[localhost\] => (\{.*\})", done.stdout)
    told = json.loads(found)
    assert told.pop("elapsed_s") >= 0
    kept = {key: told[key] for key in ("changed", "found", "written", "left")}
    if check:
        assert kept == {"changed": True, "found": {"secrets": 7}, "written": {}, "left": {}}
        assert not api.written
    else:
        assert kept == {"changed": True, "found": {"secrets": 7}, "written": {"secrets": 5}, "left": {"secrets": 2}}
