"""How long a process has between SIGTERM and its end, and whether a save fits into that.

`ANYRIG_GRACE` ("30", "2m") says it. Without it, what is known of where the process runs is assumed, and said: SLURM
kills 30 s after SIGTERM unless the cluster's KillWait is another, Kubernetes after 30 s unless the pod's
terminationGracePeriodSeconds is another, and neither number is told to the process. Nothing here stops anything: a save
that may not fit is tried all the same, since the newest committed checkpoint stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from anyrig.errors import UsageError
from anyrig.train.limits import DURATION_WORDS, parse_duration

VARIABLE = "ANYRIG_GRACE"
_ASSUMED = (
    ("SLURM_JOB_ID", "SLURM's KillWait, unless the cluster has another"),
    ("KUBERNETES_SERVICE_HOST", "Kubernetes's default, unless the pod has another terminationGracePeriodSeconds"),
)
_DEFAULT = 30.0
_CHANGE = 1.5  # times as long as when it was last told


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds between SIGTERM and SIGKILL, and in words how they are known.

    `limit` is when SLURM ends the job (seconds since 1970). A signal that `--signal` asked for comes before it and is
    followed by no kill until then; one of `scancel` or of a preemption looks the same. So the shorter time is counted.
    """

    seconds: float
    words: str
    limit: float | None = None


def grace_period(environment: Mapping[str, str] = os.environ) -> Grace | None:
    """Return the grace period of this process; None where nothing is known. A wrong `ANYRIG_GRACE` is a UsageError."""
    if given := environment.get(VARIABLE):
        try:
            return Grace(parse_duration(given), f"{VARIABLE}={given}")
        except ValueError as error:
            raise UsageError(
                "ANY-RUN-042", f"{VARIABLE}: expected {DURATION_WORDS}, found {given!r}", hint=f"e.g. {VARIABLE}=2m"
            ) from error
    end = environment.get("SLURM_JOB_END_TIME", "")
    limit = float(end) if end.isdecimal() else None
    return next((Grace(_DEFAULT, words, limit) for variable, words in _ASSUMED if variable in environment), None)


class Deadline:
    """Compares the time that a stop takes, as measured, with the grace period."""

    def __init__(self, grace: Grace | None) -> None:
        self._grace = grace
        self._told = 0.0

    def too_short(self, needed: float) -> str | None:
        """Return a warning, long before any signal, when `needed` seconds are more than there will be.

        Said once, and again when it has become much longer.
        """
        grace = self._grace
        if grace is None or needed <= grace.seconds or needed < _CHANGE * self._told:
            return None
        self._told = needed
        hint = "" if grace.words.startswith(VARIABLE) else f"; set {VARIABLE} to what it is"
        return (
            f"stopping takes about {needed:.0f} s (a step and a save), and {grace.seconds:.0f} s are given between "
            f"SIGTERM and the kill ({grace.words}{hint}): only a longer grace period, or an earlier signal, lets "
            "the run save at its last step; checkpoints committed before are safe"
        )

    def too_late(self, needed: float, waited: float, now: float) -> str | None:
        """Return what to say at SIGTERM, `waited` seconds after it, when a save of `needed` seconds may not fit.

        `now` is in seconds since 1970.
        """
        grace = self._grace
        left = None if grace is None else max(0.0, grace.seconds - waited)
        if grace is None or left is None or needed <= left:
            return None
        ahead = grace.limit is not None and grace.limit > now
        limit = f", and the job's limit is in {grace.limit - now:.0f} s" if ahead and grace.limit else ""
        return (
            f"SIGTERM: saving takes about {needed:.0f} s, and {left:.0f} s are left ({grace.words}){limit}; it is "
            "tried, and if it is cut off, the checkpoints committed before are safe"
        )
