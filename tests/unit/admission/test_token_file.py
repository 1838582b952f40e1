"""A ServiceAccount's token is read again when kubelet has renewed it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.token_file import REREAD_S, TokenFile, token_file
from tests.support.server_helpers import write_kubeconfig


def test_a_renewed_token_is_used_and_a_missing_file_keeps_the_old_one(tmp_path: Path) -> None:
    path, now_s, configuration = tmp_path / "token", [0.0], SimpleNamespace(api_key={})
    path.write_text("one\n")
    hook = TokenFile(path, lambda: now_s[0])
    hook(configuration)
    path.write_text("two")
    hook(configuration)
    assert configuration.api_key == {"BearerToken": "Bearer one"}
    now_s[0] = REREAD_S
    hook(configuration)
    assert configuration.api_key == {"BearerToken": "Bearer two"}
    path.unlink()
    now_s[0] *= 3
    hook(configuration)
    assert configuration.api_key == {"BearerToken": "Bearer two"}


def test_the_client_asks_the_file_before_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("one")
    path = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", {"tokenFile": "token"})
    assert token_file(path) == tmp_path / "token"
    monkeypatch.setattr("gpu_burnin.admission.token_file.REREAD_S", 0.0)
    api = KubeApi(path)
    for token in ("one", "two"):
        (tmp_path / "token").write_text(token)
        headers: dict[str, str] = {}
        api._api.update_params_for_auth(headers, [], ["BearerToken"], "/", "GET", None)
        assert headers == {"authorization": f"Bearer {token}"}


def test_a_kubeconfig_without_such_a_user_has_none(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", {"token": "x"})
    assert token_file(path) is None
    path.write_text(yaml.safe_dump({"current-context": "x"}))
    assert token_file(path) is None
    assert token_file(tmp_path / "none") is None
