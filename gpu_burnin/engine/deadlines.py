"""When a run gives up: every time limit of a run, from the time of its level. Pure; the one place for them.

A level says how long a run takes (plan.LEVELS). What hangs must not hold it for much longer, and what is only slow must
not be killed: a driver that wakes 8 GPUs without persistence mode takes 20 to 30 s, each time that nothing holds it
awake (30 s on machines with 8 A100s: Azure/aks-gpu, pull request 105); 8 CUDA contexts on a cold page cache some 30 s.
So a run ends at twice its level's time, and the second half of that is for being late: as a whole for starting, and for
each step for coming to its end.
"""

from __future__ import annotations

from dataclasses import dataclass

# A run of hours is late by this much at most.
MOST_LATE_S = 900.0
# A check may be late by this, and by twice its budget more.
_SLACK_S, _BUDGETS = 60.0, 2.0


@dataclass(frozen=True)
class Deadlines:
    """Seconds after which a run waits no more; of 60 s (quick) in brackets.

    run_s           the whole run, from its start to its report [120]
    closing_s       of these, at the end: for what ends workers and samplers, the kernel log and the report [20]
    discover_s      for NVML to list the GPUs [40]
    samplers_s      for the samplers to be ready [40]
    kernel_log_s    for journald to give the kernel's messages, before the checks; afterwards, for what is left [10]
    open_s          for a worker to open its GPU [60]
    selftest_s      for a self-test [40]
    slack_s         for a check, beside its budget and twice that again [40]
    late_s          the most by which a step may be late: a run that kept to its time so far can still see a hang in its
                    last check [40]
    term_grace_s, kill_grace_s          for a worker to end after SIGTERM [3], after SIGKILL [8]
    sampler_stop_s, sampler_kill_s      the same for the samplers [4, 2]
    """

    run_s: float
    closing_s: float
    discover_s: float
    samplers_s: float
    kernel_log_s: float
    open_s: float
    selftest_s: float
    slack_s: float
    late_s: float
    term_grace_s: float
    kill_grace_s: float
    sampler_stop_s: float
    sampler_kill_s: float

    def kernel_log_left_s(self, spent_s: float) -> float:
        """Seconds for journald after the checks, `spent_s` after the run's start."""
        return max(0.1 * self.closing_s, min(self.run_s - spent_s, 30.0))

    @property
    def steps_s(self) -> float:
        """Seconds from the start of the run to the last moment of any step."""
        return self.run_s - self.closing_s

    def check_s(self, budget_s: float) -> float:
        """Seconds after which a check is ended as hung."""
        return budget_s + min(self.slack_s + _BUDGETS * budget_s, self.late_s)


def deadlines(level_s: float) -> Deadlines:
    """The time limits of a run whose level takes `level_s` seconds."""
    closing_s = min(level_s / 3, 60.0)
    run_s = level_s + min(level_s, MOST_LATE_S)
    late_s = run_s - closing_s - level_s
    return Deadlines(
        run_s=run_s,
        closing_s=closing_s,
        discover_s=min(2 * level_s / 3, 60.0),
        samplers_s=min(2 * level_s / 3, 60.0),
        kernel_log_s=min(level_s / 6, 30.0),
        open_s=min(level_s, 180.0),
        selftest_s=min(120.0, late_s),
        slack_s=min(_SLACK_S, late_s),
        late_s=late_s,
        term_grace_s=0.15 * closing_s,
        kill_grace_s=0.4 * closing_s,
        sampler_stop_s=0.2 * closing_s,
        sampler_kill_s=0.1 * closing_s,
    )
