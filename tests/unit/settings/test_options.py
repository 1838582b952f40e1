"""One declaration for each setting: what is made of it, by the file, the command line and the role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from jinja2.nativetypes import NativeEnvironment

from gpu_burnin.cli import main, plan
from gpu_burnin.cli.options import setting_flags
from gpu_burnin.settings import options
from gpu_burnin.settings.config import Config, load_config
from gpu_burnin.settings.options import FLAG, NAMES, Option, OptionError, options_of, read

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/gpu_burnin"


@dataclass(frozen=True)
class Inner:
    """A section."""

    count: int | None = options.option(options.whole(1, 10), "How many.")
    name: str | None = options.option(options.word("a name", str.isalpha), "Who.")


@dataclass(frozen=True)
class Outer:
    """Settings that nobody else declares."""

    level: str = options.option(options.choice(("low", "high")), "How much.", "low")
    wait_s: float = options.option(options.duration(60, 3600), "How long.", 90.0, key="wait")
    names: tuple[str, ...] | None = options.option(NAMES, "Which.")
    on: bool = options.option(FLAG, "Whether.", False)
    inner: Inner = options.section(Inner, "More.")


def test_a_document_becomes_typed_settings() -> None:
    found = read(Outer, {"level": "high", "wait": "2m", "names": ["a"], "on": True, "inner": {"count": 3}})
    assert found == Outer("high", 120.0, ("a",), True, Inner(3))
    assert read(Outer, {}) == Outer()
    assert read(Outer, {"level": "", "names": [], "wait": None, "inner": None}) == Outer()


@pytest.mark.parametrize(
    ("document", "key", "says"),
    [
        ({"level": "medium"}, "level", "level must be one of low, high"),
        ({"wait": 90}, "wait", "wait must be a duration"),
        ({"wait": "59s"}, "wait", "wait must be from 1m to 1h"),
        ({"wait": "61m"}, "wait", "wait must be from 1m to 1h"),
        ({"names": ["a", ""]}, "names", "names must be a list of names"),
        ({"on": 1}, "on", "on must be true or false"),
        ({"inner": {"count": 10}}, "inner.count", "inner.count must be a whole number of 1 or more"),
        ({"inner": {"count": True}}, "inner.count", "inner.count must be a whole number"),
        ({"inner": {"name": ""}}, "inner.name", "inner.name must be a name"),
        ({"inner": {"nmae": "x"}}, "inner.nmae", "unknown key inner.nmae (did you mean name?)"),
        ({"inner": 1}, "inner", "inner must be a mapping of keys to values (count, name)"),
        ({"wait_s": "2m"}, "wait_s", "unknown key wait_s (did you mean wait?)"),
        ([], "", "the file must be a mapping"),
    ],
)
def test_mistakes_name_the_key_and_what_it_must_be(document: object, key: str, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(Outer, document)
    assert caught.value.key == key
    assert str(caught.value).startswith(says)


def every(settings: type, parent: str = "") -> Iterator[tuple[str, Option]]:
    """All settings of the configuration, by the key written with dots."""
    for key, one in options_of(settings).items():
        yield f"{parent}{key}", one
        if one.section is not None:
            yield from every(one.section, f"{parent}{key}.")


def flags_of(command: click.Command) -> dict[str, click.Parameter]:
    return {name: parameter for parameter in command.params for name in parameter.opts}


def test_each_flag_that_is_declared_is_one_of_run() -> None:
    flags = flags_of(main.cli.commands["run"])
    declared = [one for _, one in every(Config) if one.flag is not None]
    assert len(declared) >= 6
    for one in declared:
        assert one.flag is not None
        parameter = flags[one.flag.names[0]]
        assert isinstance(parameter, click.Option)
        assert parameter.help == one.flag.help
    assert "--level" in flags_of(plan.plan)


def test_a_key_without_a_flag_makes_none() -> None:
    with pytest.raises(ValueError, match="kernel_log has no flag"):
        setting_flags("kernel_log")(lambda: None)


def test_a_flag_reads_its_kind() -> None:
    @click.command()
    @setting_flags("level", "checks", "wave_wait", "allow_simulated", "power_waves")
    def command(**asked: Any) -> None:
        click.echo(repr(sorted(asked.items())))

    words = ["--level", "quick", "--checks", "sm,hbm", "--wave-wait", "2m", "--simulated-ok", "--waves", "never"]
    assert CliRunner().invoke(command, words).output.strip() == repr(
        [
            ("allow_simulated", True), ("checks", ("sm", "hbm")), ("level", "quick"), ("wave_wait_s", 120.0),
            ("waves", "never"),
        ]
    )  # fmt: skip
    assert CliRunner().invoke(command, ["--level", "slow"]).exit_code == 2


def rendered(value: Any, variables: dict[str, Any]) -> Any:
    """What Ansible, with native types, makes of a value."""
    if isinstance(value, dict):
        return {key: rendered(item, variables) for key, item in value.items()}
    if not (isinstance(value, str) and "{{" in value):
        return value
    environment = NativeEnvironment()
    environment.filters["bool"] = bool
    return environment.from_string(value).render(variables)


FLEET = {"inventory_hostname": "gpu-1", "fleet_domain": "example.org", "fleet_maintenance_before_s": 5400}


def host_file(tmp_path: Path, groups: dict[str, list[str]] | None = None, **variables: Any) -> Config:
    """What a host reads of the file that the role writes with these variables."""
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    metrics = "gpu_burnin_metrics_file"
    defaults[metrics] = rendered(defaults[metrics], {"groups": groups or {}})
    wanted = {**defaults, **FLEET, "gpu_burnin_api_url": "https://198.18.0.1:6443", **variables}
    config = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__gpu_burnin_config"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(rendered(config, wanted)))
    return load_config(path)


def test_the_defaults_of_the_role_are_those_of_the_program(tmp_path: Path) -> None:
    found, default = host_file(tmp_path), Config()
    assert (found.level, found.power_waves, found.checks, found.metrics_file) == ("standard", None, None, None)
    for name in (
        "dcgm",
        "extended_for_new_s",
        "expect",
        "backend",
        "allow_simulated",
        "kernel_log",
        "shapes",
        "maintenance_provider",
        "maintenance_url",
    ):
        assert getattr(found, name) == getattr(default, name), name
    assert (found.node_name, found.require_evidence) == ("gpu-1", True)
    assert (found.publish.server, found.publish.domain) == ("https://198.18.0.1:6443", "example.org")
    assert (found.publish.ca, found.publish.client_cert) == (default.publish.ca, default.publish.client_cert)


def test_gpu_nodes_alone_publish_nowhere_and_need_one_variable(tmp_path: Path) -> None:
    """An inventory without control plane runs playbooks/burnin.yml; what else the role reads has a default."""
    url = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["gpu_burnin_api_url"]
    api = {"fleet_api_address": "198.18.0.1", "fleet_node_api_url": "https://198.18.0.1:6443"}
    assert (rendered(url, {}), rendered(url, api)) == ("", "https://198.18.0.1:6443")
    assert host_file(tmp_path, gpu_burnin_api_url="").publish.server == ""
    playbook = ROLE.parents[1] / "playbooks/burnin.yml"
    read = [path for path in ROLE.rglob("*") if path.parent.name in ("defaults", "vars", "tasks", "templates")]
    names = {name for path in (playbook, *read) for name in re.findall(r"\bfleet_\w+", path.read_text())}
    given = yaml.safe_load((ROLE.parent / "fleet/defaults/main.yml").read_text())
    assert names - given.keys() == {"fleet_api_address", "fleet_state_dir"}
    assert "that: fleet_state_dir is defined" in playbook.read_text()


def test_a_fleet_with_monitoring_hosts_reads_the_numbers_of_each_burn_in(tmp_path: Path) -> None:
    found = host_file(tmp_path, groups={"monitoring": ["mon-1"]}).metrics_file
    assert found == Path("/var/lib/prometheus/node-exporter/gpu_burnin.prom")


def test_each_variable_of_the_role_comes_to_the_host(tmp_path: Path) -> None:
    found = host_file(
        tmp_path,
        gpu_burnin_level="quick",
        gpu_burnin_checks=["sm"],
        gpu_burnin_dcgm=True,
        gpu_burnin_power_waves="never",
        gpu_burnin_extended_for_new="2h",
        gpu_burnin_expect={"gpus": 8, "nccl": "2.28.3"},
        gpu_burnin_backend="cpu",
        gpu_burnin_allow_simulated=True,
        gpu_burnin_kernel_log="/dev/kmsg",
        gpu_burnin_metrics_file="/srv/x.prom",
        gpu_burnin_maintenance_provider="gcp",
        gpu_burnin_maintenance_url="http://198.51.100.7:8080",
        gpu_burnin_shapes={"gemm_m": 64},
    )
    assert (found.maintenance_provider, found.maintenance_url) == ("gcp", "http://198.51.100.7:8080")
    assert found.maintenance_before_s == 5400.0
    assert (found.level, found.checks, found.dcgm, found.power_waves) == ("quick", ("sm",), True, "never")
    assert (found.extended_for_new_s, found.expect.gpus, found.expect.nccl) == (7200.0, 8, "2.28.3")
    assert (found.backend, found.allow_simulated, found.kernel_log) == ("cpu", True, "/dev/kmsg")
    assert (found.metrics_file, found.shapes) == (Path("/srv/x.prom"), {"gemm_m": 64})


def test_the_roles_specification_has_every_setting_with_its_default() -> None:
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    settable = [(key, one) for key, one in every(Config) if one.role is not None and one.role.variable is not None]
    assert len(settable) >= 12
    for key, one in settable:
        assert one.role is not None
        variable = one.role.variable or f"gpu_burnin_{key}"
        assert specs[variable]["default"] == defaults[variable] == one.role.default
        assert " ".join(specs[variable]["description"].split()) == one.help
        if one.section is not None:
            assert list(specs[variable]["options"]) == list(options_of(one.section))


def test_each_setting_is_told_in_the_reference() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    for key, one in every(Config):
        assert f"| `{key}` |" in page
        assert one.help.endswith("."), key
