"""The admitter's configuration: what is not given, and each mistake in a sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_burnin.admission.fabric_config import Admission, FabricRules
from gpu_burnin.admission.jobs_config import JobsConfig, QueueConfig
from gpu_burnin.admission.settings import read_settings
from gpu_burnin.errors import GpuBurninError

WHOLE = """
domain: gpu.example.org
kubeconfig: /etc/muster/kubeconfig
listen: "[::1]:10270"
identity: api-1
rules: {hold_deadline_s: 3600, settle_s: 1}
joins_per_s: 2
max_unready_share: 0.1
expire_share: 0.02
tests: {nodes: 2, hours: ["22:00-06:00"]}
system_nodes: [{name: system-1, addresses: [10.0.0.9], dns_names: [s1.example.org]}]
calendar: [{nodes: all, not_before: "2026-12-01T22:00:00Z", not_after: "2026-12-01T23:00:00Z"}]
workers: 3
resync_s: 600
jobs:
  queues: {vision: {level: extended, gang_test: false}, audio: {}}
  dedicated: {audio: {h100-sxm5-80gb: 64}}
  window_s: 7200
  wait_s: 300
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_that_is_given(tmp_path: Path) -> None:
    config = read_settings(write(tmp_path / "admitter.yaml", WHOLE))
    assert config.address == ("::1", 10270) and config.identity == "api-1"
    rules = config.decision_rules
    assert (rules.names.domain, rules.hold_deadline_s, rules.settle_s) == ("gpu.example.org", 3600, 1)
    assert config.tests.nodes == 2 and config.calendar[0].nodes is None
    assert config.inventory_nodes()["system-1"].dns_names == {"s1.example.org"}
    queues = {"vision": QueueConfig("extended"), "audio": QueueConfig("standard")}
    assert config.jobs == JobsConfig(queues, {"audio": {"h100-sxm5-80gb": 64}}, 7200, 300)
    assert config.jobs is not None and config.jobs.teams == {"vision", "audio"}


def test_nothing_needs_to_be_given(tmp_path: Path) -> None:
    config = read_settings(write(tmp_path / "admitter.yaml", ""))
    assert (config.domain, config.identity) == ("muster.dev", socket.gethostname())
    assert config.jobs is None
    jobs = read_settings(write(tmp_path / "admitter.yaml", "jobs: {}")).jobs
    assert jobs == JobsConfig(window_s=3600, wait_s=600)


@pytest.mark.parametrize("text", ["off", "'off'", '"off"', "false"])
def test_off_needs_no_quotes(tmp_path: Path, text: str) -> None:
    config = read_settings(write(tmp_path / "admitter.yaml", f"fabric: {{admission: {text}, every_s: 3600}}"))
    assert config.fabric == FabricRules(Admission.OFF, every_s=3600.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fabric: {admission: on}", r"fabric\.admission: none of 'off', 'required': True"),
        ("fabric: {admission: 0}", r"fabric\.admission: none of 'off', 'required': 0"),
        ("fabric: off", "fabric: not an object: False"),
        ("domian: x.org", "domian"),
        ("domain: x_y", "domain is 'x_y'; give a DNS name"),
        ("listen: nowhere", "listen is 'nowhere'; give ADDRESS:PORT"),
        ("listen: 'a:99999'", "give ADDRESS:PORT"),
        ("max_unready_share: 0", "max_unready_share is 0; give a share"),
        ("expire_share: 20", "expire_share is 20; give a share"),
        ("joins_per_s: 0", "joins_per_s is 0"),
        ("workers: 0", "workers is 0"),
        ("resync_s: 1", "resync_s is 1"),
        ("rules: {settle_s: -1}", r"rules\.settle_s is -1"),
        ("rules: {setle_s: 1}", "setle_s"),
        (
            "rules: {agent_silent_s: 60}",
            r"agent_silent_s is 60; give 150 or more: an agent sends a heartbeat each 60 s",
        ),
        ("tests: {nodes: -1}", "tests"),
        ("calendar: [{nodes: all}]", r"calendar\[0\]: not_before"),
        ("system_nodes: [{name: a, addresses: [x]}]", "a: its addresses are wrong"),
        ("system_nodes: [{name: a}, {name: a}]", "names a node twice"),
        ("jobs: {queue: {}}", "jobs: unknown: queue"),
        ("jobs: {queues: {a: {levle: quick}}}", r"jobs\.queues\.a: unknown: levle"),
        (
            "jobs: {queues: {a: {level: deep}}}",
            r"jobs\.queues\.a\.level is 'deep'; give one of quick, standard, extended",
        ),
        ("jobs: {queues: {a: {gang_test: 1}}}", r"jobs\.queues\.a\.gang_test: not bool: 1"),
        ("jobs: {gang_age_s: 5}", r"jobs\.gang_age_s is 5; give 60 seconds or more"),
        (
            "{mode: observing, jobs: {queues: {a: {gang_test: true}}}}",
            "gang_test of a queue asks for tests between nodes",
        ),
        ("jobs: {queues: {A_b: {}}}", "jobs names the team 'A_b'; give the name of a Namespace"),
        ("jobs: {dedicated: {a: {x: 1}}}", r"jobs\.dedicated names the team a, which jobs\.queues does not have"),
        ("jobs: {queues: {a: {}}, dedicated: {a: {x: -8}}}", r"jobs\.dedicated\.a\.x is -8; give a number of GPUs"),
        ("jobs: {queues: {a: {}}, dedicated: {a: {x: 1.5}}}", r"jobs\.dedicated\.a\.x: not int: 1\.5"),
        (
            "jobs: {queues: {a: {}}, dedicated: {a: {x/y: 1}}}",
            r"names the model 'x/y'; give a key of hardware/skus\.yaml",
        ),
        ("jobs: {window_s: -1}", r"jobs\.window_s is -1; give seconds, 0 or more"),
        ("jobs: {wait_s: 1}", r"jobs\.wait_s is 1; give 10 seconds or more"),
        ("- a", "must be keys with values"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = write(tmp_path / "admitter.yaml", text)
    with pytest.raises(GpuBurninError, match=sentence) as caught:
        read_settings(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        GpuBurninError, match=r"admitter\.yaml: cannot be read .*; site\.yml or `muster attach` writes it"
    ):
        read_settings(tmp_path / "admitter.yaml")
