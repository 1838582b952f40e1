"""Publishing against a real TLS server that asks for the client's certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.evidence import Statement
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.publish import publish
from gpu_burnin.node.signing import annotation_of
from gpu_burnin.node.store import Store
from gpu_burnin.settings.config import Config, PublishConfig
from tests.support.clocks import HandClock
from tests.support.report_helpers import NOW, leave_run
from tests.support.server_helpers import QuietHandler, listening
from tests.support.tls_pairs import make_pair, server_context


class Api:
    """The one Node of a small API server; `answers` overrides the status of coming requests."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {"metadata": {"name": "gpu-1", "annotations": {"other": "kept"}}}
        self.answers: list[int] = []
        self.requests: list[str] = []

    def handler(self) -> type[QuietHandler]:
        api = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self.answer()

            def do_PATCH(self) -> None:
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                patch = json.loads(self.body())
                if not api.answers or api.answers[0] == 200:
                    api.node["metadata"]["annotations"].update(patch["metadata"]["annotations"])
                self.answer()

            def answer(self) -> None:
                assert self.path == "/api/v1/nodes/gpu-1"
                api.requests.append(self.command)
                status = api.answers.pop(0) if api.answers else 200
                self.reply_json(status, api.node if status == 200 else {"kind": "Status", "message": f"no: {status}"})

        return Handler


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("pki")
    return make_pair(directory, "server"), make_pair(directory, "kubelet")


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def published(api: Api, pairs: tuple[Path, Path], config: Config, statement: Statement) -> Iterator[tuple[Config, str]]:
    """A configuration whose server runs, and the annotation that is to be published."""
    server_pem, client_pem = pairs
    run = leave_run(config, statement)
    with listening(api.handler(), tls=server_context(server_pem, client_pem)) as url:
        target = PublishConfig(url, server_pem, client_pem, "example.org")
        yield replace(config, publish=target), annotation_of(run.path)


def run_publish(config: Config, deadline_s: float = 5.0) -> bool:
    clock = HandClock()
    return publish(config, deadline_s, clock, clock.sleep)


def test_annotation_is_written_once(published: tuple[Config, str], api: Api) -> None:
    config, annotation = published
    assert run_publish(config) is True
    assert api.node["metadata"]["annotations"] == {"other": "kept", "example.org/evidence": annotation}
    assert run_publish(config) is False
    assert api.requests == ["GET", "PATCH", "GET"]


def test_waits_for_the_node_and_the_server(published: tuple[Config, str], api: Api) -> None:
    api.answers = [404, 503, 200, 500]
    assert run_publish(published[0]) is True
    assert api.requests == ["GET", "GET", "GET", "PATCH", "GET", "PATCH"]


def refused(config: Config, says: str, deadline_s: float = 2.0) -> int:
    with pytest.raises(GpuBurninError, match=says) as caught:
        run_publish(config, deadline_s)
    assert "\n" not in str(caught.value)
    assert "gpu-1" in str(caught.value)
    return caught.value.exit_code


def test_gives_up_at_the_deadline(published: tuple[Config, str], api: Api) -> None:
    api.answers = [404] * 10
    assert refused(published[0], "gave up after 2 s.*no: 404") == 1
    assert len(api.requests) == 3


def test_refusal_is_final(published: tuple[Config, str], api: Api) -> None:
    api.answers = [403]
    assert refused(published[0], "refused GET.*no: 403") == 1
    assert api.requests == ["GET"]


def test_server_of_another_ca_is_not_trusted(published: tuple[Config, str], api: Api, pairs: tuple[Path, Path]) -> None:
    config = published[0]
    stranger = replace(config, publish=replace(config.publish, ca=pairs[1]))
    assert refused(stranger, "does not answer.*certificate verify failed") == 1
    assert api.requests == []


def test_missing_certificate_is_waited_for(published: tuple[Config, str], tmp_path: Path) -> None:
    config = published[0]
    bare = replace(config, publish=replace(config.publish, client_cert=tmp_path / "none.pem"))
    refused(bare, "gave up after 2 s: .*none.pem does not exist")


@pytest.mark.parametrize("server", ["", "http://127.0.0.1", "127.0.0.1:6443"])
def test_wrong_server_is_a_configuration_error(server: str, published: tuple[Config, str]) -> None:
    config = published[0]
    assert refused(replace(config, publish=replace(config.publish, server=server)), "publish.server") == 2


def test_without_evidence_there_is_nothing_to_publish(config: Config) -> None:
    assert refused(config, "nothing to publish: no burn-in has been completed here") == 1


def test_a_newer_run_without_evidence_withdraws_what_is_published(published: tuple[Config, str], api: Api) -> None:
    config, annotation = published
    assert run_publish(config) is True
    assert api.node["metadata"]["annotations"]["example.org/evidence"] == annotation
    store = Store(config.state_dir)
    with store.locked():
        store.begin(store.new_run(NOW))
    assert refused(config, "run 2 has begun and left no evidence.*the evidence published before is withdrawn") == 1
    assert api.node["metadata"]["annotations"] == {"other": "kept", "example.org/evidence": None}
    assert refused(config, "run 2 has begun and left no evidence") == 1
    assert api.requests == ["GET", "PATCH", "GET", "PATCH", "GET"], "once is enough"
