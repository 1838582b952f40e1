"""The scaler's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.admission.settings import SettingsError
from gpu_burnin.power.program import Program
from gpu_burnin.power.redfish import Redfish
from gpu_burnin.scaler.settings import providers, read_settings

WHOLE = """
domain: fleet.example
listen: 127.0.0.1:0
rules: {idle_s: 60, spare: {h100: 2}}
redfish: {user: muster, password_file: PASSWORD}
programs: {cloud: {command: [/opt/cloud, --region, x]}}
calendar: [{nodes: all, not_before: "2026-12-01T22:00:00Z", not_after: "2026-12-01T23:00:00Z"}]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "scaler.yaml"
    path.write_text(text.replace("PASSWORD", str(folder / "password")))
    return path


def test_all_of_it_is_read_and_the_password_is_in_no_words(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    config = read_settings(write(tmp_path, WHOLE))
    assert (config.rules.idle_s, config.rules.spare, config.rules.on_per_feed) == (60, {"h100": 2}, 4)
    assert config.identity and config.names.machine_crd == "machinepowers.fleet.example" and len(config.calendar) == 1
    found = providers(config)
    assert isinstance(found["cloud"], Program) and found["cloud"].command == ("/opt/cloud", "--region", "x")
    bmcs = found["redfish"]
    assert isinstance(bmcs, Redfish) and bmcs.password == "secret" and "secret" not in repr(bmcs)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "must be keys with values"),
        ("idle: 3", "idle"),
        ("listen: here", "listen is 'here'"),
        ("rules: {in_share: 0}", "rules.in_share is 0"),
        ("rules: {doubt_share: 1.5}", "rules.doubt_share is 1.5"),
        ("rules: {on_per_feed: 0}", "rules.on_per_feed is 0"),
        ("rules: {idle_s: -1}", "rules.idle_s is -1"),
        ("rules: {spare: {h100: -2}}", "rules.spare of h100 is below 0"),
        ("orders: 0", "orders is 0"),
        ("programs: {redfish: {command: [/x]}}", "a program is called redfish"),
        ("programs: {cloud: {command: [cloud]}}", "programs.cloud.command does not begin with a path"),
        ("calendar: 3", "calendar must be a list"),
    ],
)
def test_each_mistake_is_one_sentence_with_its_key(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: ") and says in str(caught.value)


def test_without_its_password_it_does_not_start(tmp_path: Path) -> None:
    config = read_settings(write(tmp_path, WHOLE))
    with pytest.raises(SettingsError, match="the password of the BMCs cannot be read"):
        providers(config)
