"""A kubeconfig: what the kubernetes package makes of it, and in one sentence why it cannot be used."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.temporary_folder import temporary_folder

_LIBRARY = "kubernetes/config/"
# What nobody holds any more would be closed, which removes its folder.
_kept: list[ExitStack] = []


class KubeconfigError(GpuBurninError):
    """It cannot be read, or names no cluster, or its plugin gives no credential."""


def load(given: Path | Mapping[str, Any], configuration: Any) -> Any:
    """The package's client of a file, or of a document that stands in none, with `configuration` filled.

    Raises KubeconfigError.
    """
    source = given if isinstance(given, Mapping) else str(given)
    fill: Any = config.load_kube_config if isinstance(source, str) else config.load_kube_config_from_dict
    # $KUBECONFIG may be a list of them, and one may come through a pipe.
    if isinstance(source, str) and not any(Path(one).exists() for one in source.split(os.pathsep)):
        raise KubeconfigError("there is no such file")
    try:
        with _logged() as errors:
            keys = _folder_of_keys()
            fill(source, persist_config=False, client_configuration=configuration, temp_file_path=keys)
    except (config.ConfigException, OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise KubeconfigError(why(error)) from error
    # The package logs that a plugin failed, and goes on as nobody.
    if errors:
        raise KubeconfigError(f"its user's plugin gives no credential: {errors[0]}")
    return client.ApiClient(configuration)


def current_cluster(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Name and entry of the cluster that the current context names. Raises KubeconfigError."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KubeconfigError(f"cannot read the kubeconfig {path} ({why(error)}); give --kubeconfig another") from error
    try:
        current = loaded["current-context"]
        [context] = [one["context"] for one in loaded["contexts"] if one["name"] == current]
        [cluster] = [one["cluster"] for one in loaded["clusters"] if one["name"] == context["cluster"]]
    except (KeyError, TypeError, ValueError) as error:
        named = loaded.get("current-context") if isinstance(loaded, Mapping) else None
        problem = f"its current context {named!r} names no cluster of it" if named else "it has no current context"
        raise KubeconfigError(
            f"{path}: {problem}; choose one by `kubectl config use-context`, or give --kubeconfig another file"
        ) from error
    return str(context["cluster"]), cluster


def why(error: Exception) -> str:
    """On one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"it is no YAML: {error.problem}, line {error.problem_mark.line + 1}"
    if isinstance(error, UnicodeDecodeError | yaml.YAMLError):
        return "it is no text of YAML"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())


@cache
def _folder_of_keys() -> str | None:
    """Where the package writes the keys that stand within a kubeconfig: they go with this process, or, where that was
    killed, with the next one.

    None where there is no place for it: what names files alone needs none, as on a node.
    """
    stack = ExitStack()
    try:
        folder = stack.enter_context(temporary_folder("muster-kube"))
    except OSError:
        return None
    # A forked worker, as Ansible's, ends without atexit. This it runs, and not that of the process before it.
    _kept.append(stack)
    Finalize(None, stack.close, exitpriority=-1)
    return str(folder)


@contextmanager
def _logged() -> Iterator[list[str]]:
    """The errors that the package logs meanwhile, and only here."""
    errors = list[str]()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if _LIBRARY in record.pathname and record.levelno >= logging.ERROR:
                errors.append(" ".join(record.getMessage().split()))

    root, keep = logging.getLogger(), Keep()
    root.addHandler(keep)
    try:
        yield errors
    finally:
        root.removeHandler(keep)
