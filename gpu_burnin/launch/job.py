"""`run`: a job from a few lines of Python, checked in full before anything is made."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_burnin.api.names import DEFAULT_DOMAIN, Names
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.function import script_of
from gpu_burnin.launch.objects import config_map, job_set
from gpu_burnin.launch.offer import check_quota, choose_level, choose_model
from gpu_burnin.launch.outcome import Outcome
from gpu_burnin.launch.pack import Packed, pack, pack_text
from gpu_burnin.launch.pod_options import check_cpus, check_env_from, check_hold, check_memory, check_volumes
from gpu_burnin.launch.request import (
    Request,
    check_env,
    check_figures,
    check_image,
    check_name,
    check_source,
    check_team,
    name_after,
)

if TYPE_CHECKING:
    from gpu_burnin.admission.client import KubeApi

IMAGE_VARIABLE, KUBECONFIG_VARIABLE = "MUSTER_IMAGE", "KUBECONFIG"
_KUBECONFIG = "~/.kube/config"


@dataclass(frozen=True)
class Launched:
    """A job: its JobSet has its name, in the namespace of its team. `objects` are as they were asked for."""

    name: str
    team: str
    outcome: Outcome
    objects: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether it was followed to a good end."""
        return self.outcome is Outcome.SUCCEEDED


def run(
    train: Callable[..., Any] | str | os.PathLike[str],
    *,
    nodes: int,
    team: str,
    kind: str | None = None,
    near: str | None = None,
    image: str | None = None,
    gpus_per_node: int | None = None,
    processes_per_node: int | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    entry: str | None = None,
    source: str | None = None,
    sha256: str | None = None,
    name: str | None = None,
    priority: str | None = None,
    max_runtime_s: int | None = None,
    env: Mapping[str, str] | None = None,
    env_from: Sequence[str] = (),
    volumes: Sequence[str] = (),
    cpus: float | None = None,
    memory: str | None = None,
    hold_until: str | None = None,
    restarts: int = 3,
    grace_s: int = 120,
    follow: bool = True,
    dry_run: bool = False,
    kubeconfig: str | os.PathLike[str] | None = None,
    domain: str = DEFAULT_DOMAIN,
) -> Launched:
    """Run a function, a script or a folder on whole nodes, all or none of them. Raises GpuBurninError, one sentence.

    `train` is a function that stands by itself, called with `args` and `kwargs` (JSON values); or the path of a script
    or of a folder, of which `entry` (else __main__.py or main.py) is started with `args` on its command line. With
    `source`, a URL of a .tar.gz or .py with its `sha256`, `train` is the path of what is started inside of it.

    Each node runs `processes_per_node` of it, by default one for each GPU, with the variables that torchrun sets.
    `kind` is a model of GPU or its beginning (h100), `near` the level that all nodes share (rack, leaf). Exit code 42
    of a process says that it saved and wants to be started again; that and lost nodes do not count as `restarts`.

    `volumes` are PersistentVolumeClaims of the team, as NAME:/path or NAME:/path:ro; `env_from` its Secrets and
    ConfigMaps of which each key becomes a variable (NAME, secret/NAME, configmap/NAME). `cpus` and `memory` (512Gi) are
    what each node has for it at least. `hold_until`, "checkpoint" or a time (RFC 3339), is how long a node that should
    leave work is left to the job. With `follow` the log of the first node is shown until the job ends.
    """
    check_figures(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        processes_per_node=processes_per_node,
        restarts=restarts,
        max_runtime_s=max_runtime_s,
        grace_s=grace_s,
    )
    team, env = check_team(team), check_env(env or {})
    mounts, variables = check_volumes(volumes), check_env_from(env_from)
    cpu_quantity, memory = check_cpus(cpus), check_memory(memory)
    hold_until = check_hold(hold_until, datetime.now(UTC))
    name = check_name(name) if name is not None else name_after(_title(train))
    check_source(source, sha256)
    packed, argv = _packed(train, args, kwargs, entry, source)
    # Not before: what is wrong so far is said at once, and without a cluster.
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.launch import look

    file = Path(kubeconfig or os.environ.get(KUBECONFIG_VARIABLE) or _KUBECONFIG)
    api = KubeApi(file.expanduser())
    names = Names(domain)
    look.check_rights(api, team)
    offer = look.look_at_offer(api, team, names)
    model, level = choose_model(offer, kind), choose_level(offer, near)
    image = check_image(image or os.environ.get(IMAGE_VARIABLE) or look.default_image(api, team), team)
    gpus = gpus_per_node or look.gpus_of_a_node(api, offer, model)
    check_quota(offer, model, nodes, gpus)
    look.check_priority(api, priority)
    look.check_claims(api, team, mounts, nodes)
    variables = look.find_variables(api, team, variables)
    look.check_free(api, team, name)
    request = Request(
        name=name,
        team=team,
        nodes=nodes,
        gpus_per_node=gpus,
        processes_per_node=processes_per_node or gpus,
        image=image,
        entry=packed.entry,
        sha256=sha256 or hashlib.sha256(packed.archive).hexdigest(),
        model=model,
        near=level,
        close_by=offer.levels[-1] if offer.levels and level is None else None,
        argv=argv,
        url=source,
        env=env,
        variables=variables,
        mounts=mounts,
        cpus=cpu_quantity,
        memory=memory,
        hold_until=hold_until,
        priority=priority,
        max_runtime_s=max_runtime_s,
        restarts=restarts,
        grace_s=grace_s,
    )
    archive = None if source else packed.archive
    objects = job_set(request, names), config_map(request, archive, None)
    if dry_run:
        return Launched(name, team, Outcome.MADE, objects)
    _make(api, request, objects[0], archive)
    outcome = Outcome.MADE
    if follow:
        from gpu_burnin.launch.follow import follow_job

        outcome = follow_job(api, team, name)
    return Launched(name, team, outcome, objects)


def _title(train: object) -> str:
    if isinstance(train, str | os.PathLike):
        return Path(train).resolve().stem
    return str(getattr(train, "__name__", "job"))


def _packed(
    train: Callable[..., Any] | str | os.PathLike[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    entry: str | None,
    source: str | None,
) -> tuple[Packed, tuple[str, ...]]:
    """What is sent, and the command line of its processes."""
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise LaunchError(f"args is {args!r}; give a list")
    if not isinstance(train, str | os.PathLike):
        if source is not None or entry is not None:
            raise LaunchError("a function is sent by itself; source and entry go with a path")
        name = f"{getattr(train, '__name__', 'job')}.py"
        return pack_text(name, script_of(train, args, kwargs)), ()
    if kwargs:
        raise LaunchError("kwargs go with a function; give a script its command line by args")
    argv = tuple(map(str, args))
    if source is None:
        return pack(Path(train), entry), argv
    path = Path(train).as_posix()
    if entry is not None or path.startswith(("/", "../")):
        raise LaunchError(
            f"with a source, name what is started by its path inside of it, and give no entry; {path} is not that"
        )
    return Packed(b"", path), argv


def _make(api: KubeApi, request: Request, made: Mapping[str, Any], archive: bytes | None) -> None:
    """The JobSet, then the ConfigMap that goes with it. Kubernetes is asked about both before one is made."""
    from gpu_burnin.admission.client import ApiError, Conflict
    from gpu_burnin.launch import look

    maps, sets = look.core_path(request.team, "configmaps"), look.job_sets_path(request.team)
    what = f"make the job {request.name} in {request.team}"
    try:
        api.create(f"{maps}?dryRun=All", config_map(request, archive, None), what)
        owner = api.create(sets, made, what)
        try:
            api.create(maps, config_map(request, archive, owner), what)
        except (ApiError, Conflict, KeyboardInterrupt):
            # Its pods would take nodes and wait for their source.
            api.delete(look.job_sets_path(request.team, request.name), f"take back the job {request.name}")
            raise
    except Conflict as error:
        raise LaunchError(f"{error}; change what it names, or give another name") from error
