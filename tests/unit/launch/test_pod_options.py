"""What the pods of a job may be given besides GPUs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.pod_options import (
    Mount,
    Variables,
    check_cpus,
    check_env_from,
    check_hold,
    check_memory,
    check_volumes,
)

NOW = datetime(2026, 11, 27, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: check_volumes(["data"]), "the volume 'data' is not NAME:/path or NAME:/path:ro"),
        (lambda: check_volumes(["data:/a:rw"]), "is not NAME:/path or NAME:/path:ro"),
        (lambda: check_volumes(["data:/a:ro:x"]), "is not NAME:/path or NAME:/path:ro"),
        (lambda: check_volumes(["Data:/a"]), "no PersistentVolumeClaim can have the name 'Data'"),
        (lambda: check_volumes([":/a"]), "no PersistentVolumeClaim can have the name ''"),
        (lambda: check_volumes(["data:a"]), "goes to 'a'; give a whole path, such as data:/data"),
        (lambda: check_volumes(["data:"]), "goes to ''; give a whole path"),
        (lambda: check_volumes(["data:/a/../dev"]), "give a whole path"),
        (lambda: check_volumes(["data:/"]), "the volume data cannot be at /, since /run/muster is taken"),
        (lambda: check_volumes(["data:/run"]), "cannot be at /run, since /run/muster is taken"),
        (lambda: check_volumes(["data:/dev/shm"]), "cannot be at /dev/shm, since /dev is taken"),
        (lambda: check_volumes(["data:/a", "data:/b"]), "volumes name the claim data twice"),
        (lambda: check_volumes(["data:/a", "more:/a/"]), "volumes name the path /a twice"),
        (lambda: check_volumes("data:/a"), "volumes is 'data:/a'; give a list of texts"),
        (lambda: check_volumes([1]), r"volumes is \[1\]; give a list of texts"),  # type: ignore[list-item]
        (lambda: check_env_from(["pod/x"]), "env_from has 'pod/x'; give a name, secret/NAME or configmap/NAME"),
        (lambda: check_env_from(["secret/"]), "no Secret or ConfigMap can have the name ''"),
        (lambda: check_env_from(["A=b"]), "no Secret or ConfigMap can have the name 'A=b'"),
        (lambda: check_env_from("tokens"), "env_from is 'tokens'; give a list of texts"),
        (
            lambda: check_hold("tomorrow", NOW),
            "hold_until is 'tomorrow' .*; give a time with its offset, or checkpoint",
        ),
        (lambda: check_hold("2026-11-28T18:00:00", NOW), "give a time with its offset"),
        (lambda: check_hold("2026-11-27T18:00:00Z", NOW), "it is 2026-11-27T18:00:00Z now; give a time to come"),
        (lambda: check_cpus(0), "cpus is 0; give a number, such as 64 or 0.5"),
        (lambda: check_cpus(-1), "cpus is -1"),
        (lambda: check_cpus(float("nan")), "cpus is nan"),
        (lambda: check_cpus(float("inf")), "cpus is inf"),
        (lambda: check_cpus("8"), "cpus is '8'"),  # type: ignore[arg-type]
        (lambda: check_cpus(True), "cpus is True"),
        (lambda: check_memory("512"), "memory is '512'; give a size with its unit, such as 512Gi"),
        (lambda: check_memory("512GB"), "memory is '512GB'"),
        (lambda: check_memory("0Gi"), "memory is '0Gi'"),
        (lambda: check_memory("-1Gi"), "memory is '-1Gi'"),
        (lambda: check_memory(512), "memory is 512"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_said(check: Callable[[], Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        check()
    assert "\n" not in str(caught.value)


def test_what_can_be_is_taken() -> None:
    assert check_volumes(["data:/data", "sets.v1:/mnt//sets/:ro"]) == (
        Mount("data", "/data"),
        Mount("sets.v1", "/mnt/sets", True),
    )
    assert check_env_from(["tokens", "secret/keys", "configmap/flags"]) == (
        Variables("", "tokens"),
        Variables("secret", "keys"),
        Variables("configmap", "flags"),
    )
    assert check_hold("checkpoint", NOW) == "checkpoint" and check_hold(None, NOW) is None
    assert check_hold("2026-11-27T20:00:01+02:00", NOW) == "2026-11-27T20:00:01+02:00"
    assert (check_cpus(64), check_cpus(64.0), check_cpus(0.5), check_cpus(None)) == ("64", "64", "500m", None)
    assert (check_memory("512Gi"), check_memory("1.5Ti"), check_memory(None)) == ("512Gi", "1.5Ti", None)
