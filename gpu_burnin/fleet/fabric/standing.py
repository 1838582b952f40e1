"""What a standing comes to: proven, suspect, named, cleared. Pure.

A failure with a partner that is not proven makes suspects of all. Only failures with proven partners name, and they
count against the suspect alone: a proven partner is never blamed.
"""

from __future__ import annotations

from gpu_burnin.fleet.fabric.model import ALL, Settings, Standing

# So many passes, and no failure, prove a node that is no suspect.
PROVEN_PASSES = 2


def named(standing: Standing, settings: Settings) -> tuple[int, ...]:
    """The scopes that are named: ALL, rails, or none."""
    return tuple(sorted(scope for scope, (_, failures) in standing.probes.items() if failures >= settings.enough))


def decided(standing: Standing, settings: Settings) -> bool:
    """Whether all scopes that were probed are named or cleared."""
    return bool(standing.probes) and all(max(both) >= settings.enough for both in standing.probes.values())


def cleared(standing: Standing, settings: Settings) -> bool:
    """Whether it failed before, and then passed with proven partners often enough."""
    return decided(standing, settings) and not named(standing, settings)


def proven(standing: Standing, settings: Settings) -> bool:
    """Whether it may be the partner of a suspect."""
    if standing.failures or standing.probes:
        return cleared(standing, settings) or (not standing.probes and _passed_among(standing))
    return standing.passes >= PROVEN_PASSES


def suspect(standing: Standing, settings: Settings) -> bool:
    """Whether a test has failed that nothing explains yet."""
    return standing.failures > 0 and not decided(standing, settings) and not proven(standing, settings)


def untested(standing: Standing, settings: Settings) -> bool:
    """Whether it has too few tests to say anything."""
    return not standing.failures and not standing.probes and standing.passes < PROVEN_PASSES


def has_probe_failure(standing: Standing) -> bool:
    """Whether a probe has failed, in any scope."""
    return any(failures for _, failures in standing.probes.values())


def whole(scopes: tuple[int, ...], rails: tuple[int, ...]) -> bool:
    """Whether named scopes are the whole of it, and not some of its rails."""
    hit = [scope for scope in scopes if scope != ALL]
    return bool(scopes) and (not hit or set(hit) >= set(rails))


def _passed_among(standing: Standing) -> bool:
    return any(passes >= PROVEN_PASSES and not failures for passes, failures in standing.among.values())
