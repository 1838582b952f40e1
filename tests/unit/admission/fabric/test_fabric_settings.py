"""The settings of tests between nodes: what cannot be used is one sentence that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.admission.settings import SettingsError, read_settings


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("every_s: -1", "fabric.every_s is -1; give 0 for no standing tests, or 60 s or more"),
        ("every_s: 5", "fabric.every_s is 5; give 0 for no standing tests, or 60 s or more"),
        ("seconds: 0", "fabric.seconds is 0; give seconds above 0 and up to 600"),
        ("seconds: 601", "fabric.seconds is 601; give seconds above 0 and up to 600"),
        ("size_mib: 0", "fabric.size_mib is 0; give 1 to 4096"),
        ("wait_s: -1", "fabric.wait_s is -1; give seconds, 0 or more"),
        (
            "every_s: 86400}\nmode: enforcing #",
            "fabric asks for tests between nodes, and where attached there are none",
        ),
        ("admission: perhaps", "admission"),
        ("evry_s: 1", "evry_s"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "admitter.yaml"
    path.write_text(f"fabric: {{{text}}}\n")
    with pytest.raises(SettingsError) as caught:
        read_settings(path)
    assert str(path) in str(caught.value) and why in str(caught.value)


@pytest.mark.parametrize(("text", "on"), [("{}", False), ("{every_s: 60}", True), ("{admission: required}", True)])
def test_they_are_off_where_nobody_asks_for_them(tmp_path: Path, text: str, on: bool) -> None:
    path = tmp_path / "admitter.yaml"
    path.write_text(f"fabric: {text}\n")
    assert read_settings(path).fabric.on is on
