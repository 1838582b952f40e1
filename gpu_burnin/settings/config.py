"""The host's configuration file: defaults for run, gate and publish. Unknown keys are refused."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpu_burnin.checks.power.grant_request import MODES
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings import expectations
from gpu_burnin.settings.durations import FORM, parse_duration
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.settings.state_dir import default_state_dir
from gpu_burnin.system.files import read_text

DEFAULT_PATH = Path("/etc/gpu-burnin/config.yaml")
LEVELS = ("quick", "standard", "extended")
BACKENDS = ("auto", "cuda", "cpu")
# How long a run waits for a grant of its power waves, by default.
WAVE_WAIT_S = 1800.0
# An extended run that is shorter has hardly looped and makes no GPU known: our own figure.
LEAST_EXTENDED_S = 1800.0
_MOST_EXTENDED_S = 30 * 86400.0
SHAPE_KEYS = ("gemm_m", "gemm_n", "gemm_k", "hbm_bytes", "transfer_bytes", "collective_bytes")
_T = TypeVar("_T")


@dataclass(frozen=True)
class PublishConfig:
    """How the node reaches its own Node object. `client_cert` holds certificate and key in one PEM file."""

    server: str = ""
    ca: Path = Path("/etc/kubernetes/pki/ca.crt")
    client_cert: Path = Path("/var/lib/kubelet/pki/kubelet-client-current.pem")
    domain: str = "muster.dev"


@dataclass(frozen=True)
class Config:
    """What this host's operator sets. None: not set, the command's own default holds.

    `shapes` (elements, bytes) reduces the checks for the lab; `kernel_log` is "auto" or a kmsg-format file.
    `metrics_file` is where the metrics of the newest run are written too, for node_exporter's textfile collector.
    `dcgm` adds the check of that name. `power_waves` says when all GPUs may swing between idle and full load together:
    always, when it is granted (for which a run waits `wave_wait_s` seconds) or never. `extended_for_new_s`: a run of
    which no level is asked becomes one of the level extended, that long, while a GPU is new here. `expect` is what this
    node should look like. `require_evidence` refuses a run that could not be signed, as on a host whose gate waits for
    it.
    """

    level: str | None = None
    checks: tuple[str, ...] | None = None
    dcgm: bool = False
    power_waves: str | None = None
    wave_wait_s: float = WAVE_WAIT_S
    extended_for_new_s: float | None = None
    expect: Expectations = field(default_factory=Expectations)
    backend: str = "auto"
    allow_simulated: bool = False
    node_name: str = field(default_factory=lambda: socket.gethostname().lower())
    host_key: Path = Path("/etc/ssh/ssh_host_ed25519_key")
    require_evidence: bool = False
    kernel_log: str = "auto"
    state_dir: Path = field(default_factory=default_state_dir)
    metrics_file: Path | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    publish: PublishConfig = field(default_factory=PublishConfig)


class _Reader:
    """Takes typed values out of one mapping; what is left over at the end is unknown."""

    def __init__(self, path: Path, prefix: str, document: object) -> None:
        self._path, self._prefix = path, prefix
        if not isinstance(document, dict):
            raise GpuBurninError(f"{path}: {prefix.rstrip('.') or 'the file'} must be a mapping of keys to values")
        self._left: dict[object, object] = dict(document)
        self._known: set[str] = set()

    def _bad(self, key: str, wanted: str) -> GpuBurninError:
        return GpuBurninError(f"{self._path}: {self._prefix}{key} must be {wanted}")

    def take(self, key: str, kind: type[_T], wanted: str, default: _T) -> _T:
        """The value of `key`, which must be exactly a `kind`, or the default when absent or null."""
        self._known.add(key)
        value = self._left.pop(key, None)
        if value is None:
            return default
        # bool is an int to isinstance; a count of "yes" is a mistake.
        if type(value) is not kind:
            raise self._bad(key, wanted)
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None) -> str | None:
        """One of `choices`."""
        value = self.take(key, str, f"one of {', '.join(choices)}", "")
        if value and value not in choices:
            raise self._bad(key, f"one of {', '.join(choices)}")
        return value or default

    def path(self, key: str, default: Path) -> Path:
        """An absolute path."""
        return self.optional_path(key) or default

    def optional_path(self, key: str) -> Path | None:
        """An absolute path, or None."""
        value = self.take(key, str, "an absolute path", "")
        if value and not Path(value).is_absolute():
            raise self._bad(key, "an absolute path")
        return Path(value) if value else None

    def count(self, key: str) -> int | None:
        """A whole number of 1 or more."""
        self._known.add(key)
        if self._left.get(key) is None:
            self._left.pop(key, None)
            return None
        value = self.take(key, int, "a whole number of 1 or more", 0)
        if value < 1:
            raise self._bad(key, "a whole number of 1 or more")
        return value

    def duration(self, key: str) -> float | None:
        """Seconds, 1 or more, out of a text such as 30m."""
        value = self.take(key, str, FORM, "")
        if not value:
            return None
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise self._bad(key, FORM) from error
        if not seconds:
            raise self._bad(key, FORM)
        return seconds

    def expectations(self) -> Expectations:
        """The section `expect`, empty when absent."""
        self._known.add(expectations.KEY)
        section = self._left.pop(expectations.KEY, None)
        try:
            return expectations.parse({} if section is None else section)
        except expectations.ExpectationError as error:
            raise GpuBurninError(f"{self._path}: {error}") from error

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of names."""
        value: list[object] = self.take(key, list, "a list of names", [])
        if any(not isinstance(item, str) or not item for item in value):
            raise self._bad(key, "a list of names")
        return tuple(str(item) for item in value) or None

    def mapping(self, key: str) -> _Reader:
        """The reader of a nested mapping, empty when absent."""
        self._known.add(key)
        return _Reader(self._path, f"{self._prefix}{key}.", self._left.pop(key, None) or {})

    def end(self) -> None:
        """Refuse what nobody asked for."""
        if self._left:
            key = sorted(str(key) for key in self._left)[0]
            near = difflib.get_close_matches(key, sorted(self._known), 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise GpuBurninError(f"{self._path}: unknown key {self._prefix}{key}{hint}; remove it or correct its name")


def _publish(reader: _Reader) -> PublishConfig:
    default = PublishConfig()
    found = PublishConfig(
        server=reader.take("server", str, "an https:// address", default.server),
        ca=reader.path("ca", default.ca),
        client_cert=reader.path("client_cert", default.client_cert),
        domain=reader.take("domain", str, "a domain name", default.domain),
    )
    reader.end()
    return found


def _shapes(reader: _Reader) -> dict[str, int]:
    counts = {key: reader.count(key) for key in SHAPE_KEYS}
    reader.end()
    return {key: count for key, count in counts.items() if count is not None}


def parse_config(document: object, path: Path) -> Config:
    """A Config from a parsed YAML document; raises GpuBurninError (exit 2) naming file and key."""
    reader = _Reader(path, "", {} if document is None else document)
    default = Config()
    found = Config(
        level=reader.choice("level", LEVELS, None),
        checks=reader.names("checks"),
        dcgm=reader.take("dcgm", bool, "true or false", default.dcgm),
        power_waves=reader.choice("power_waves", MODES, None),
        wave_wait_s=reader.duration("wave_wait") or default.wave_wait_s,
        extended_for_new_s=reader.duration("extended_for_new"),
        expect=reader.expectations(),
        backend=reader.choice("backend", BACKENDS, default.backend) or default.backend,
        allow_simulated=reader.take("allow_simulated", bool, "true or false", default.allow_simulated),
        node_name=reader.take("node_name", str, "the name of the Node object", default.node_name) or default.node_name,
        host_key=reader.path("host_key", default.host_key),
        require_evidence=reader.take("require_evidence", bool, "true or false", default.require_evidence),
        kernel_log=reader.take("kernel_log", str, "auto or the path of a file", default.kernel_log),
        state_dir=reader.path("state_dir", default.state_dir),
        metrics_file=reader.optional_path("metrics_file"),
        shapes=_shapes(reader.mapping("shapes")),
        publish=_publish(reader.mapping("publish")),
    )
    # A shorter one would come again with each run.
    if found.extended_for_new_s is not None and not LEAST_EXTENDED_S <= found.extended_for_new_s <= _MOST_EXTENDED_S:
        raise GpuBurninError(f"{path}: extended_for_new must be from 30m to 30d")
    if found.kernel_log != "auto" and not Path(found.kernel_log).is_absolute():
        raise GpuBurninError(f"{path}: kernel_log must be auto or an absolute path")
    reader.end()
    return found


def load_config(path: Path | None = None) -> Config:
    """The configuration at `path` (default /etc/gpu-burnin/config.yaml, which may be missing).

    Raises GpuBurninError (exit 2) that names the file and what is wrong in it.
    """
    chosen = path or DEFAULT_PATH
    try:
        text = read_text(chosen)
    except FileNotFoundError as error:
        if path is None:
            return Config()
        raise GpuBurninError(f"{chosen}: no such configuration file; correct --config") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise GpuBurninError(
            f"{chosen}: cannot read the configuration ({reason}); correct the file or run as root"
        ) from error
    from gpu_burnin.system import yaml_text

    return parse_config(yaml_text.load(text, chosen), chosen)
