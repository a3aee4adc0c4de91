"""The grace period: where it is known from, and what is said when a save does not fit into it."""

from __future__ import annotations

import pytest

from anyrig.errors import UsageError
from anyrig.train.deadline import Deadline, Grace, grace_period


@pytest.mark.parametrize(
    ("environment", "seconds", "words"),
    [
        ({"ANYRIG_GRACE": "30"}, 30, "ANYRIG_GRACE=30"),
        ({"ANYRIG_GRACE": "2m", "SLURM_JOB_ID": "7"}, 120, "ANYRIG_GRACE=2m"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1900000000"}, 30, "KillWait"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 30, "terminationGracePeriodSeconds"),
    ],
)
def test_the_grace_period_is_told_or_assumed(environment: dict[str, str], seconds: float, words: str) -> None:
    found = grace_period(environment)
    assert found is not None
    assert found.seconds == seconds
    assert words in found.words


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert grace_period({"HOME": "/root", "ANYRIG_GRACE": ""}) is None
    assert Deadline(None).too_short(1e9) is None
    assert Deadline(None).too_late(1e9, 0, 0) is None


@pytest.mark.parametrize("given", ["soon", "0", "-3", "30 bananas"])
def test_a_grace_period_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"ANYRIG_GRACE: expected .* found") as caught:
        grace_period({"ANYRIG_GRACE": given})
    assert caught.value.code == "ANY-RUN-042"


def test_a_warning_comes_once_and_again_when_it_is_much_longer() -> None:
    deadline = Deadline(Grace(30, "ANYRIG_GRACE=30"))
    said = [deadline.too_short(needed) is not None for needed in (29, 30, 31, 40, 46, 47, 68, 70)]
    assert said == [False, False, True, False, False, True, False, False]
    text = Deadline(Grace(30, "SLURM's KillWait")).too_short(90) or ""
    assert "about 90 s" in text
    assert "30 s are given between SIGTERM and the kill (SLURM's KillWait; set ANYRIG_GRACE to what it is)" in text


def test_at_the_signal_the_time_that_is_left_counts() -> None:
    deadline = Deadline(Grace(30, "ANYRIG_GRACE=30"))
    assert deadline.too_late(20, 10, 0) is None
    assert "saving takes about 21 s, and 20 s are left" in (deadline.too_late(21, 10, 0) or "")
    assert "and 0 s are left" in (deadline.too_late(21, 100, 0) or "")


def test_the_limit_of_a_slurm_job_is_told_and_not_counted_on() -> None:
    found = grace_period({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1900000000"})
    deadline = Deadline(found)
    assert "0 s are left (SLURM's KillWait, unless the cluster has another), and the job's limit is in 120 s" in (
        deadline.too_late(40, 31, 1900000000 - 120) or ""
    )
    assert "limit" not in (deadline.too_late(40, 31, 1900000001) or "")
