"""What a job is asked for, checked as far as that goes without a cluster."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.pod_options import Mount, Variables

# With what JobSet and Job append (-node-0-NNNNN-xxxxx) a pod's name stays a label: 63 characters.
MOST_NAME = 42
MOST_NODES = 99_999
# More is refused in the namespace of a team (roles/node_admission/templates/teams.yaml.j2).
MOST_GRACE_S = 3600
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
# The launcher's own, and torchrun's.
RESERVED = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"}
    | {"ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "HOME", "TMPDIR"}
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job: `nodes` pods with `gpus_per_node` GPUs each, `processes_per_node` processes in each.

    `model` is a key of hardware/skus.yaml, "" where any will do. `near` is the key of the label that all nodes have to
    share; `close_by` one that they share where that can be. `sha256` is that of the source. `cpus` and `memory` are
    what each pod asks for, as Kubernetes writes it; None is what the team's LimitRange says.
    """

    name: str
    team: str
    nodes: int
    gpus_per_node: int
    processes_per_node: int
    image: str
    entry: str
    sha256: str
    model: str = ""
    near: str | None = None
    close_by: str | None = None
    argv: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[Variables, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cpus: str | None = None
    memory: str | None = None
    hold_until: str | None = None
    priority: str | None = None
    max_runtime_s: int | None = None
    restarts: int = 3
    grace_s: int = 120


def check_figures(**figures: int | None) -> None:
    """Refuse what is no whole number, or too small. Raises LaunchError; None stands for the default."""
    least, most = {"restarts": 0, "grace_s": 2}, {"grace_s": MOST_GRACE_S}
    for key, value in figures.items():
        if value is None:
            continue
        lowest = least.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise LaunchError(f"{key} is {value!r}; give a whole number, {lowest} or more")
        if value > (highest := most.get(key, value)):
            raise LaunchError(f"{key} is {value:,}; give {highest:,} at most")
    nodes = figures.get("nodes") or 0
    if nodes > MOST_NODES:
        raise LaunchError(f"nodes is {nodes:,}; a job has {MOST_NODES:,} at most")


def check_name(name: str) -> str:
    """A name that all objects of the job can have. Raises LaunchError."""
    if not _NAME.fullmatch(name) or len(name) > MOST_NAME:
        raise LaunchError(
            f"the name {name!r} cannot be a job's: give up to {MOST_NAME} small letters, digits and hyphens, which "
            "begin with a letter and do not end with a hyphen"
        )
    return name


def check_team(team: str) -> str:
    """A team's name. Raises LaunchError."""
    if not _LABEL.fullmatch(team):
        raise LaunchError(f"the team {team!r} cannot be one: a team is named as its namespace, such as vision")
    return team


def check_image(image: str | None, team: str) -> str:
    """The image's name. Raises LaunchError where there is none."""
    if not image or not image.strip() or image.split() != [image]:
        what = "no image is given" if not (image or "").strip() else f"the image {image!r} has blanks in its name"
        raise LaunchError(
            f"{what}; name one that has python3 and what the job imports: --image, $MUSTER_IMAGE, or the key image of "
            f"the ConfigMap muster-launch in the namespace {team}"
        )
    return image


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables for the processes. Raises LaunchError."""
    for key, value in env.items():
        if not isinstance(key, str) or not _VARIABLE.fullmatch(key):
            raise LaunchError(
                f"env has {key!r}, which cannot be a variable's name; use letters, digits and underscores"
            )
        if key in RESERVED or key.startswith("MUSTER_"):
            raise LaunchError(f"env sets {key}, which the launcher sets itself; leave it out")
        if not isinstance(value, str):
            raise LaunchError(f"env sets {key} to {value!r}; give a text")
    return dict(env)


def check_source(url: str | None, sha256: str | None) -> None:
    """A URL goes with the hash of what it leads to. Raises LaunchError."""
    if url is None and sha256 is None:
        return
    if url is None or sha256 is None:
        raise LaunchError("source and sha256 go together; give the hash that sha256sum prints for the archive")
    if not url.startswith(("https://", "http://")):
        raise LaunchError(f"the source {url} is no URL of http or https, and pods can fetch nothing else")
    if not _SHA256.fullmatch(sha256):
        raise LaunchError(f"sha256 is {sha256!r}; give the 64 hexadecimal digits that sha256sum prints")


def name_after(what: str) -> str:
    """A name for a job of what it runs, with an end that makes it one of its own."""
    plain = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-").lstrip("0123456789-") or "job"
    end = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
    return f"{plain[: MOST_NAME - _SUFFIX_LENGTH - 1].rstrip('-')}-{end}"
