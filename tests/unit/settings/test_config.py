"""The configuration file: typed, and nothing in it goes unread."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings.config import Config, load_config
from gpu_burnin.settings.expectations import Expectations

WHOLE = """\
level: quick
checks: [state, gemm]
dcgm: true
power_waves: granted
wave_wait: 45m
extended_for_new: 2h
expect:
  {gpus: 8, model: h100-x, nvlink_links: 0, mig: false, power_limit_w: 6.5, driver_version: 580.95.05, vbios: "96",
   nccl: "2.28"}
backend: cpu
allow_simulated: true
node_name: gpu-1
host_key: /etc/ssh/key
require_evidence: true
kernel_log: /dev/kmsg
state_dir: /srv/state
metrics_file: /var/lib/node_exporter/gpu_burnin.prom
shapes: {gemm_m: 64, hbm_bytes: 4096}
publish: {server: "https://198.18.7.41:6443", ca: /pki/ca.crt, client_cert: /pki/kubelet.pem, domain: example.org}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, WHOLE))
    assert config.level == "quick"
    assert config.checks == ("state", "gemm")
    assert config.dcgm is True
    assert (config.power_waves, config.wave_wait_s) == ("granted", 2700)
    assert config.extended_for_new_s == 7200
    assert config.expect == Expectations(8, "h100-x", 0, False, 6.5, "580.95.05", "96", "2.28")
    assert config.backend == "cpu"
    assert config.allow_simulated is True
    assert config.node_name == "gpu-1"
    assert config.host_key == Path("/etc/ssh/key")
    assert config.require_evidence is True
    assert config.kernel_log == "/dev/kmsg"
    assert config.state_dir == Path("/srv/state")
    assert config.metrics_file == Path("/var/lib/node_exporter/gpu_burnin.prom")
    assert config.shapes == {"gemm_m": 64, "hbm_bytes": 4096}
    assert config.publish.server == "https://198.18.7.41:6443"
    assert config.publish.client_cert == Path("/pki/kubelet.pem")
    assert config.publish.domain == "example.org"


@pytest.mark.parametrize("text", ["", "{}", "level: null\nshapes:\npublish:\nexpect:\n", "expect: {gpus: , mig: }"])
def test_nothing_said_gives_defaults(text: str, tmp_path: Path) -> None:
    config = load_config(write(tmp_path, text))
    assert config == Config()
    assert config.node_name == socket.gethostname().lower()
    assert config.allow_simulated is False
    assert config.metrics_file is None
    assert (config.dcgm, config.power_waves, config.wave_wait_s) == (False, None, 1800)
    assert (config.extended_for_new_s, config.expect) == (None, Expectations())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("levle: quick", "unknown key levle (did you mean level?); remove it"),
        ("zzz: 1", "unknown key zzz; remove it"),
        ("publish: {sever: x}", "unknown key publish.sever"),
        ("shapes: {gemm: 1}", "unknown key shapes.gemm"),
        ("level: fast", "level must be one of quick, standard, extended"),
        ("level: 1", "level must be one of"),
        ("dcgm: 1", "dcgm must be true or false"),
        ("power_waves: sometimes", "power_waves must be one of always, granted, never"),
        ("power_waves: true", "power_waves must be one of always, granted, never"),
        ("wave_wait: 1800", "wave_wait must be a duration such as 90s, 30m, 2h or 1d"),
        ("wave_wait: 0s", "wave_wait must be a duration"),
        ("extended_for_new: soon", "extended_for_new must be a duration"),
        ("extended_for_new: 29m", "extended_for_new must be from 30m to 30d"),
        ("extended_for_new: 31d", "extended_for_new must be from 30m to 30d"),
        ("expect: 8", "expect must be a mapping of keys to values (gpus, model, nvlink_links, mig"),
        ("expect: {gpu: 8}", "unknown key expect.gpu (did you mean gpus?); remove it"),
        ("expect: {ecc: true}", "unknown key expect.ecc (the keys are gpus, model, nvlink_links, mig"),
        ("expect: {nccl: 2.28}", "expect.nccl must be a version in quotes"),
        ("expect: {nccl: newest}", "expect.nccl must be a version in quotes"),
        ("expect: {driver_version: 580.95}", "expect.driver_version must be a version in quotes"),
        ("expect: {vbios: 96}", "expect.vbios must be a version in quotes"),
        ("expect: {vbios: ' '}", "expect.vbios must be a version in quotes"),
        ("expect: {model: H100 SXM}", "expect.model must be a key of gpu_burnin/hardware/skus.yaml, such as h100-sxm5"),
        ("expect: {nvlink_links: -1}", "expect.nvlink_links must be a whole number of 0 or more"),
        ("expect: {nvlink_links: 18.0}", "expect.nvlink_links must be a whole number of 0 or more"),
        ("expect: {mig: 1}", "expect.mig must be true or false"),
        ("expect: {power_limit_w: 0}", "expect.power_limit_w must be watts above 0"),
        ("expect: {power_limit_w: .nan}", "expect.power_limit_w must be watts above 0"),
        ("expect: {power_limit_w: .inf}", "expect.power_limit_w must be watts above 0"),
        ("expect: {power_limit_w: true}", "expect.power_limit_w must be watts above 0"),
        ("backend: tpu", "backend must be one of"),
        ("checks: gemm", "checks must be a list of names"),
        ("checks: [1]", "checks must be a list of names"),
        ("expect: {gpus: 0}", "expect.gpus must be a whole number of 1 or more"),
        ("expect: {gpus: -1}", "expect.gpus must be a whole number of 1 or more"),
        ("expect: {gpus: true}", "expect.gpus must be a whole number of 1 or more"),
        ("allow_simulated: 'yes'", "allow_simulated must be true or false"),
        ("state_dir: state", "state_dir must be an absolute path"),
        ("metrics_file: burnin.prom", "metrics_file must be an absolute path"),
        ("kernel_log: kmsg", "kernel_log must be auto or an absolute path"),
        ("shapes: {gemm_m: -1}", "shapes.gemm_m must be a whole number"),
        ("publish: 1", "publish must be a mapping"),
        ("- level", "the file must be a mapping"),
        ("a: [\n", ":2: is not YAML"),
        ("level: quick\nbackend: cpu\nlevel: extended\n", ":3: key 'level' is given twice"),
        ("shapes: {gemm_m: 64, gemm_m: 65}", ":1: key 'gemm_m' is given twice"),
        ("checks: [{a: 1, a: 2}]", ":1: key 'a' is given twice"),
        ("level: &a {b: *a, b: 1}", ":1: key 'b' is given twice"),
        ("level: !!python/object:os.system x", ":1: could not determine a constructor"),
        ("level: quick\n---\nlevel: extended\n", ":2: is not YAML"),
        (f"expect: {{gpus: {'9' * 5000}}}", "holds a value that cannot be read"),
        ("level: 2026-13-45", "holds a value that cannot be read"),
        ("level: " + "[" * 500000 + "]" * 500000, "is nested too deep"),
        ("level:\n" + "- " * 5000, "is nested too deep"),
        ("level: \x07", "is not YAML"),
    ],
)
def test_mistakes_name_file_and_key(text: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(GpuBurninError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("level: quick\n\nlevle: quick\n", 3),
        ("level: quick\nexpect:\n  gpus: 8\n  mig: 1\n", 4),
        ("level: quick\nexpect: {gpus: 8, mig: 1}\n", 2),
        ("level: quick\npublish:\n  server: x\n  sever: x\n", 4),
        ("level: quick\nchecks:\n  - 1\n", 2),
        ("# a comment\n- level\n", 1),
        ("level: quick\nexpect: &a {gpus: 0, more: *a}\n", 2),
    ],
)
def test_mistakes_name_the_line(text: str, line: int, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(GpuBurninError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(GpuBurninError, match="no such configuration file"):
        load_config(tmp_path / "none.yaml")


def test_all_mistakes_are_told_with_their_values(tmp_path: Path) -> None:
    path = write(tmp_path, "level: fast\nexpect: {gpus: many, mig: 3}\nwatch_poll: soon\nchekcs: []\n")
    with pytest.raises(GpuBurninError) as caught:
        load_config(path)
    assert str(caught.value).replace(str(path), "F").splitlines() == [
        "F:1: level must be one of quick, standard, extended, not 'fast'",
        "F:2: expect.gpus must be a whole number of 1 or more, not 'many'",
        "F:2: expect.mig must be true or false, not 3",
        "F:3: watch_poll must be a duration such as 90s, 30m, 2h or 1d, not 'soon'",
        "F:4: unknown key chekcs (did you mean checks?); remove it or correct its name",
    ]


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    with pytest.raises(GpuBurninError, match=r"not 'x{56}\.\.\.$"):
        load_config(write(tmp_path, f"level: {'x' * 200}\n"))
