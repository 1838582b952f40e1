"""What a standing comes to: proven, suspect, named, cleared. Pure.

A failure with a partner that is not proven makes suspects of all. Only failures with proven partners name, and they
count against the suspect alone: a proven partner is never blamed.
"""

from __future__ import annotations

from gpu_burnin.fabric.model import ALL, Settings, Standing, State

# So many passes, and no failure, prove a node that is no suspect.
PROVEN_PASSES = 2
# Of the members of a leaf, or of a spine, so many have to fail for that to be the cause, and not each of them.
NEARLY_ALL = 0.9
# Of so few, each may be faulty by itself as well.
FEW = 3


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
        return cleared(standing, settings) or (not standing.probes and _passed_among(standing, settings))
    return standing.passes >= PROVEN_PASSES and not _withdrawn(standing, settings)


def suspect(standing: Standing, settings: Settings) -> bool:
    """Whether a test has failed that nothing explains yet."""
    failed = standing.failures > 0 or _withdrawn(standing, settings)
    return failed and not decided(standing, settings) and not proven(standing, settings)


def untested(standing: Standing, settings: Settings) -> bool:
    """Whether it has too few tests to say anything."""
    return not standing.failures and not standing.probes and standing.passes < PROVEN_PASSES


def has_probe_failure(standing: Standing) -> bool:
    """Whether a probe has failed, in any scope."""
    return any(failures for _, failures in standing.probes.values())


def given_up(standing: Standing, settings: Settings) -> bool:
    """Whether so many of its tests came to nothing that it is left undecided."""
    return standing.spoiled > 2 * settings.enough + settings.most_retries


def whole(scopes: tuple[int, ...], rails: tuple[int, ...]) -> bool:
    """Whether named scopes are the whole of it, and not some of its rails."""
    hit = [scope for scope in scopes if scope != ALL]
    return bool(scopes) and (not hit or set(hit) >= set(rails))


def whole_leaf(state: State, leaf: str) -> bool:
    """Whether so many of a leaf's nodes failed with proven partners that the leaf is the cause.

    One may be left that passed with two of them by chance; not one that passed with proven partners.
    """
    standings = [state.nodes.get(name, Standing()) for name in state.fabric.leaves[leaf]]
    known = [one for one in standings if not untested(one, state.settings)]
    others = [one for one in known if not named(one, state.settings)]
    bad = len(known) - len(others)
    if bad > FEW and len(others) == 1:
        return not others[0].probes
    return bad > 1 and bad >= NEARLY_ALL * len(known)


def _withdrawn(standing: Standing, settings: Settings) -> bool:
    """Whether its proof is in doubt: all suspects of its leaf failed with it. It is no worse than they are."""
    passes, failures = standing.as_partner
    return not passes and failures >= settings.enough


def _passed_among(standing: Standing, settings: Settings) -> bool:
    return any(passes >= settings.enough and not failures for passes, failures in standing.among.values())
