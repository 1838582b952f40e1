"""What the commands on the cluster share: which cluster, as whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_burnin.api.names import DEFAULT_DOMAIN
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import write_atomic

if TYPE_CHECKING:
    from gpu_burnin.admission.client import KubeApi

_KUBECONFIGS = "kubeconfig"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def cluster_options(function: _Function) -> _Function:
    """--kubeconfig and --domain."""
    options = (
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            default=Path("~/.kube/config"),
            envvar="KUBECONFIG",
            show_default=True,
            show_envvar=True,
            help="Kubeconfig of an admin, such as fleet_state_dir/kubeconfig/admin.kubeconfig.",
        ),
        click.option(
            "--domain", default=DEFAULT_DOMAIN, show_default=True, help="Domain of the fleet's labels and taints."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def page_option(function: _Function) -> _Function:
    """--html FILE."""
    return click.option(
        "--html",
        "page",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Also write it as a page that opens anywhere.",
    )(function)


def state_option(function: _Function) -> _Function:
    """--state DIR."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="MUSTER_STATE",
        show_envvar=True,
        help="The inventory's fleet_state_dir, for reports and their history.  [default: the folder above the "
        "kubeconfig's, where that is one]",
    )(function)


def state_beside(kubeconfig: Path) -> Path | None:
    """The state directory whose kubeconfig this is: STATE/kubeconfig/NAME."""
    folder = kubeconfig.absolute().parent
    return folder.parent if folder.name == _KUBECONFIGS and (folder.parent / "known_hosts").exists() else None


def connect(kubeconfig: Path) -> KubeApi:
    """The API that a kubeconfig names. Raises ApiError."""
    from gpu_burnin.admission.client import KubeApi

    return KubeApi(kubeconfig.expanduser())


def namespace_of(kubeconfig: Path) -> str:
    """The namespace that a kubeconfig's context names; "" for none."""
    from kubernetes import config

    contexts: Any = config.list_kube_config_contexts
    try:
        _, context = contexts(str(kubeconfig.expanduser()))
    except config.ConfigException:
        return ""
    return str((context.get("context") or {}).get("namespace") or "")


def write_page(page: Path, text: str) -> None:
    """Write a page, and say where it is. Raises GpuBurninError."""
    try:
        write_atomic(page, text.encode(), mode=0o644)
    except OSError as error:
        raise GpuBurninError(f"cannot write {page} ({error.strerror}); give --html another place") from error
    click.echo(f"page: {page}", err=True)
