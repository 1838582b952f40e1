"""The screen at the end of a run, and the list of all hosts that stands in a file where they are many. Pure functions.

A fleet that a screen holds has a line for each host. Of a larger one the screen counts the hosts that are alike, names
what is not well, and shows why some of each kind are held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.muster.fleet.plugins.plugin_utils.host_states import HostState

from gpu_burnin.system.host_names import fold, name_hosts
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, wrap

# More hosts than one reads: they are counted then, and the list has each.
HOSTS_SHOWN = 40
# Of such a fleet: lines of the table, of what is held, of notes, of one row, and reasons of one kind.
_TABLE, _HELD, _NOTES, _ROW, _REASONS = 16, 14, 6, 3, 3
# Words of host_states for a host that the run has lost.
_LOST = ("FAILED", "LEFT OUT")
# So many hosts, or notes, are named where there may be hundreds.
_NAMED = 5


@dataclass(frozen=True)
class Surroundings:
    """What the last lines name: the fleet's state, the inventory, and groups of etcd of which no snapshots are made."""

    state_dir: str
    inventory: Sequence[str] = ()
    without_backup: Sequence[str] = ()


def screen(states: Sequence[HostState], around: Surroundings, list_file: str = "") -> str:
    """The text. With the name of a `list_file`, which has each host, it counts them."""
    parts = [
        _counted(states, list_file) if list_file else _each(states),
        _absent([host.name for host in states if host.absent]),
        _held_kinds(states) if list_file else [line for host in states if host.held for line in _held(host)],
        _notes(states, _NOTES if list_file else None),
        _without_backup(around.without_backup),
        _wanted([host.name for host in states if host.new_gpus]),
        _next(states, around),
    ]
    return "\n".join("\n".join(part) for part in parts if part)


def listed(states: Sequence[HostState], title: str) -> list[str]:
    """The lines of the list: each host, then why each is held and what else is to know of it."""
    widths = _widths(states)
    lines = [title, ""]
    lines += [f"{host.name:{widths[0]}}  {host.role:{widths[1]}}  {host.state}" for host in states]
    for host in states:
        if host.held:
            lines += ["", f"{host.name} is held{host.order}", *(f"  {reason}" for reason in host.reasons)]
        lines += [f"{host.name}: {note}" for note in host.notes]
    return lines


def _widths(states: Sequence[HostState]) -> tuple[int, int]:
    return max((len(host.name) for host in states), default=0), max((len(host.role) for host in states), default=0)


def _each(states: Sequence[HostState]) -> list[str]:
    first, second = _widths(states)
    rest = " " * (first + second + 4)
    return [
        *(
            line
            for host in states
            for line in wrap(host.state, STANDARD_WIDTH, f"{host.name:{first}}  {host.role:{second}}  ", rest)
        ),
        "",
    ]


def _counted(states: Sequence[HostState], list_file: str) -> list[str]:
    """Hosts of one role and one state in a row: what has failed, then the order of the house; of a role the many first.

    All that failed have the same words, so their rows are few, and never those that do not fit.
    """
    alike: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for host in states:
        alike[host.rank, host.role, host.state].append(host.name)
    counts = {key: f"{len(names):,}" for key, names in alike.items()}
    first, second = max(map(len, counts.values())), _widths(states)[1]
    rest = " " * (first + second + 4)
    rows = []
    for key in sorted(alike, key=lambda key: (not key[2].startswith(_LOST), key[0], -len(alike[key]), key)):
        _, role, state = key
        fine = state == "up" or state.startswith("ready")
        text = state if fine else f"{state}  ({_some(alike[key])})"
        row = wrap(text, STANDARD_WIDTH, f"{counts[key]:>{first}}  {role:{second}}  ", rest)
        rows.append(row if len(row) <= _ROW else [*row[: _ROW - 1], f"{rest}..."])
    return [
        f"{len(states):,} hosts, each with its state in {list_file}",
        *_within(rows, _TABLE, "and {:,} more kinds of states"),
        "",
    ]


def _some(names: Sequence[str]) -> str:
    words, _, left = fold(names)
    return ", ".join(words) + (f" and {left:,} more" if left else "")


def _within(entries: Sequence[Sequence[str]], most: int, more: str) -> list[str]:
    """The entries that `most` lines hold, in their order, and then a line that says how many do not fit."""
    lines: list[str] = []
    for shown, entry in enumerate(entries):
        left = len(entries) - shown
        # But for the last entry one line is kept.
        if len(lines) + len(entry) + (left > 1) > most:
            return [*lines, more.format(left)]
        lines += entry
    return lines


def _absent(hosts: Sequence[str]) -> list[str]:
    if not hosts:
        return []
    told = (
        f"{name_hosts(hosts)}: no answer to SSH, so this run has changed nothing there and the exit code is not 0. "
        "Look at power, BMC and network, then run site.yml again; or take the host out of the inventory"
    )
    return [*wrap(told, STANDARD_WIDTH, "", "  "), ""]


def _held(host: HostState) -> list[str]:
    return [f"{host.name} is held{host.order}", *_sentences(host.reasons), ""]


def _sentences(reasons: Sequence[str]) -> list[str]:
    return [line for reason in reasons for line in wrap(short_uuids(reason), STANDARD_WIDTH, "  ", "    ")]


def _held_kinds(states: Sequence[HostState]) -> list[str]:
    """The many that are held for the same come first, with the reasons of one of them."""
    kinds: dict[tuple[str, str], list[HostState]] = defaultdict(list)
    for host in states:
        if host.held:
            kinds[host.state, host.order].append(host)
    entries = []
    for hosts in sorted(kinds.values(), key=len, reverse=True):
        first = hosts[0]
        if len(hosts) == 1:
            title = f"{first.name} is held{first.order}"
        else:
            of_one = f". Of {first.name}:" if first.reasons else ""
            title = f"{name_hosts([host.name for host in hosts])} are held{first.order}{of_one}"
        lines = _sentences(first.reasons)
        if len(lines) > _REASONS:
            lines = [*lines[: _REASONS - 1], "  ..."]
        entries.append([*wrap(title, STANDARD_WIDTH, "", "  "), *lines])
    return [*_within(entries, _HELD, "and {:,} more kinds of reasons"), ""] if entries else []


def _notes(states: Sequence[HostState], most: int | None) -> list[str]:
    """What the stack's roles would change and did not on a node that does work, and what is wrong with its DCGM."""
    noted = [(host.name, note) for host in states for note in host.notes]
    lines = [
        line for host, note in noted[:_NAMED] for line in wrap(f"{host}: {short_uuids(note)}", STANDARD_WIDTH, "", "  ")
    ]
    if most is not None and len(lines) > most:
        lines = [*lines[: most - 1], "  ..."]
    left = len(noted) - _NAMED
    return [*lines, *([f"and {left:,} more notes of the NVIDIA stack"] if left > 0 else []), *([""] if noted else [])]


def _without_backup(groups: Sequence[str]) -> list[str]:
    """A line about the etcd clusters of which no snapshots are made."""
    told = (
        f"No snapshots are made of {' and '.join(groups)}: set etcd_backup_recipients and a second place "
        "(docs/operations/backup-and-restore.md)"
    )
    return [*wrap(told, STANDARD_WIDTH, "", "  "), ""] if groups else []


def _wanted(new: Sequence[str]) -> list[str]:
    if not new:
        return []
    more = f" and {len(new) - _NAMED:,} more" if len(new) > _NAMED else ""
    have = "has" if len(new) == 1 else "have"
    return [
        f"{', '.join(new[:_NAMED])}{more} {have} GPUs that want an extended burn-in once (EXTENDED_WANTED)",
        "",
    ]


def _next(states: Sequence[HostState], around: Surroundings) -> list[str]:
    state = around.state_dir
    inventory = " ".join(f"-i {source}" for source in around.inventory)
    held = [host for host in states if host.held]
    lines = ["Next:", f"  kubectl --kubeconfig {state}/kubeconfig/admin.kubeconfig get nodes"]
    if len(held) > 1:
        lines.append(f"  gpu-burnin report {state}/reports    (all that are held, and why)")
    for host in held[:1]:
        lines.append(f"  gpu-burnin report {state}/reports/{host.name}/report.json")
        if host.page:
            lines.append(f"  {state}/reports/{host.name}/report.html    (the same with plots, for a browser)")
        lines.append(f"  ansible-playbook {inventory} playbooks/burnin.yml -l {host.name}    (after the repair)")
    for host in [host for host in states if host.new_gpus and not host.held][:1]:
        retest = f"playbooks/burnin.yml -l {host.name} -e gpu_burnin_retest_level=extended"
        lines.append(f"  ansible-playbook {inventory} {retest}    (its new GPUs; drain it first)")
    return lines
