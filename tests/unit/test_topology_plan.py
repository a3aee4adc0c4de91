"""The device plan: blocks, and a reason for each choice."""

from __future__ import annotations

import numpy as np
import pytest

from anyrig.errors import UsageError
from anyrig.topology.plan import choose_precision, describe, device_plan, short_name, split_rows


def _cpus(number: int) -> list[str]:
    return [f"/device:CPU:{index}" for index in range(number)]


@pytest.mark.parametrize(
    ("devices", "v", "blocks"),
    [
        (1, None, ((0,),)),
        (1, 4, ((0, 1, 2, 3),)),
        (2, 4, ((0, 1), (2, 3))),
        (3, 4, ((0, 1), (2,), (3,))),
        (4, 6, ((0, 1), (2, 3), (4,), (5,))),
        (4, 2, ((0,), (1,), (), ())),
        (4, None, ((0,), (1,), (2,), (3,))),
    ],
)
def test_devices_take_contiguous_blocks(devices: int, v: int | None, blocks: tuple[tuple[int, ...], ...]) -> None:
    assert device_plan(_cpus(devices), v).blocks == blocks


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 7, 256, 1437])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_rows_are_split_as_numpy_does(rows: int, parts: int) -> None:
    assert split_rows(rows, parts) == tuple(len(part) for part in np.array_split(np.arange(rows), parts))


def test_reasons_name_idle_devices_and_the_limit_of_v() -> None:
    reasons = "\n".join(device_plan(_cpus(4), 2, requested=4).reasons)
    assert "2 devices stay idle: there are more devices (4) than virtual replicas (2)" in reasons
    assert "can use at most 2 devices" in reasons
    assert "because devices=4 was asked for" in reasons


def test_reasons_say_when_v_is_not_a_multiple_of_the_devices() -> None:
    assert any("V = 6 is not a multiple of 4 devices" in reason for reason in device_plan(_cpus(4), 6).reasons)
    assert not any("not a multiple" in reason for reason in device_plan(_cpus(2), 6).reasons)
    assert not any("not a multiple" in reason for reason in device_plan(_cpus(4), 2).reasons)  # two are idle


@pytest.mark.parametrize(
    ("devices", "v", "code", "message"),
    [
        (0, 1, "ANY-DEVICE-008", "no device"),
        (2, 0, "ANY-DEVICE-009", "expected 1 or more, found 0"),
        (2, -3, "ANY-DEVICE-009", "found -3"),
    ],
)
def test_what_cannot_be_planned_is_refused(devices: int, v: int, code: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        device_plan(_cpus(devices), v)
    assert error.value.code == code
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("requested", "global_policy", "capability", "policy", "why"),
    [
        ("auto", "float32", None, "float32", "on CPUs"),
        ("auto", "float32", (6, 1), "float32", "older GPUs"),
        ("auto", "float32", (7, 5), "mixed_float16", "compute capability 7.5"),
        ("auto", "float32", (8, 0), "mixed_bfloat16", "compute capability 8.0"),
        ("auto", "mixed_float16", (8, 0), "mixed_float16", "global dtype policy"),
        ("auto", "float64", None, "float64", "global dtype policy"),
        ("float32", "mixed_float16", (9, 0), "float32", "as asked for"),
    ],
)
def test_auto_takes_the_users_policy_else_what_the_devices_do_best(
    requested: str, global_policy: str, capability: tuple[int, int] | None, policy: str, why: str
) -> None:
    chosen = choose_precision(requested, global_policy, capability)
    assert chosen.policy == policy
    assert why in chosen.reason
    plan = device_plan(_cpus(1), 1, precision=chosen)
    assert f"precision          {policy}\n" in describe(plan)
    assert chosen.reason in describe(plan)


def test_a_precision_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match='found "float16"') as error:
        choose_precision("float16", "float32", None)
    assert error.value.code == "ANY-DEVICE-010"


def test_the_description_shows_rows_of_each_device() -> None:
    text = describe(device_plan(_cpus(4), 3), 256)
    assert "CPU:0              replica 0, 86 rows of each full batch" in text
    assert "CPU:3              idle" in text


@pytest.mark.parametrize("name", ["/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"])
def test_short_names(name: str) -> None:
    assert short_name(name) == "CPU:1"


def test_the_description_has_only_words_that_are_explained() -> None:
    labels = [
        line.split("  ")[1] for line in describe(device_plan(["CPU:0"], 2), 8).partition("\nwhy")[0].splitlines()[1:]
    ]
    assert labels == ["devices", "virtual replicas", "global batch", "CPU:0", "precision"]
