"""A step for which memory is wanting: made in smaller parts, recorded, and with the bytes of a run that had them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.state.capture import capture
from anyrig.store.commit import newest_sound
from anyrig.store.digest import state_digest_of
from anyrig.testing.processes import run_python
from anyrig.topology.plan import DevicePlan, device_plan
from anyrig.train.outofmemory import OutOfMemoryPolicy
from anyrig.train.rig import Rig
from anyrig.train.step import mergeable, owner
from anyrig.train.step.exhausted import OutOfMemory
from tests.unit.hungry import LATE, PLENTY, X, Y, build, fit, fits, step_by_step


@pytest.fixture(autouse=True)
def _enough(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (owner, mergeable):  # what fails here calls Python, which a user's model may not
        monkeypatch.setattr(module, "refuse_impure", lambda graph: None)
    yield
    fits.update(PLENTY)


def digest(model: keras.Model) -> str:
    return state_digest_of(capture(model).tensors, 0)


def progress(run: Path) -> dict[str, Any]:
    checkpoint, _ = newest_sound(run / "checkpoints")
    assert checkpoint is not None
    return checkpoint.progress


def test_the_first_step_is_split_and_has_the_bytes_of_a_run_with_that_v(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig, run = Rig(1), anyrig.Checkpoint(tmp_path, every="1 epoch")
    fresh, model, again = (rig.build(build) for _ in range(3))
    fit(rig, fresh, 8, epochs=2)
    fits["rows"] = 1
    fit(rig, model, 2, callbacks=[run], verbose=2)
    printed = capsys.readouterr().out
    assert "out of memory at step 1: V 2 -> 4, the numbers from here on are those of V = 4\n" in printed
    assert "out of memory at step 1: V 4 -> 8, the numbers from here on are those of V = 8\n" in printed
    stored = progress(tmp_path)
    assert stored["virtual_replicas"] == 8
    assert stored["forks"] == [{"step": 1, "from": 2, "to": 4}, {"step": 1, "from": 4, "to": 8}]
    log = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    forks = [event for event in log if event["kind"] == "fork"]
    assert [event["virtual_replicas"] for event in forks] == [[2, 4], [4, 8]]
    assert "OOM when allocating tensor" in forks[0]["reason"]

    fit(rig, again, 2, callbacks=[run], epochs=2, resume="auto")  # the same call goes on with the V of the run now
    assert digest(again) == digest(fresh)
    assert progress(tmp_path)["forks"] == stored["forks"]


def test_a_later_step_is_split_from_the_state_before_it() -> None:
    rig = Rig(1)
    split, expected = rig.build(build), rig.build(build)
    step_by_step(rig, expected, LATE, [2, 2, 8, 8, 8, 8])
    fits.update(marked=1, really=True)
    fit(rig, split, 2, LATE)
    assert digest(split) == digest(expected)


def test_a_half_made_update_is_undone_by_the_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, run = Rig(1), anyrig.Checkpoint(tmp_path, every="2 steps")
    split, expected, lost = (rig.build(build) for _ in range(3))
    step_by_step(rig, expected, X, [2, 2, 4, 4, 4, 4])
    smaller = OutOfMemoryPolicy.smaller
    monkeypatch.setattr(OutOfMemoryPolicy, "smaller", lambda *a: (fits.update(PLENTY), smaller(*a))[1])  # then it fits
    fits["not_update"] = 3
    fit(rig, split, 2, callbacks=[run])
    assert digest(split) == digest(expected)
    assert progress(tmp_path)["forks"] == [{"step": 3, "from": 2, "to": 4}]

    fits["not_update"] = 3
    with pytest.raises(AnyrigError, match="no checkpoint to go back to") as error:
        fit(rig, lost, 2)
    assert error.value.code == "ANY-TRAIN-042"


def test_it_is_raised_where_asked_for_or_where_nothing_is_left_to_split() -> None:
    rig = Rig(1)
    model = rig.build(build)
    step_by_step(rig, model, X, [])
    fits["rows"] = 0
    before = [v.numpy().tobytes() for v in model.variables]
    with pytest.raises(AnyrigError, match='on_oom is "raise"') as error:
        fit(rig, model, 2, on_oom="raise")
    assert error.value.code == "ANY-TRAIN-041"
    with pytest.raises(AnyrigError, match="each of the V = 8 virtual replicas has one row already"):
        fit(rig, model, 2)
    assert [v.numpy().tobytes() for v in model.variables] == before
    with pytest.raises(UsageError, match="on_oom: expected one of split, raise, found 'halve'"):
        fit(rig, model, 2, on_oom="halve")


class OwnStep(keras.Model):
    """Trains by itself."""

    def train_step(self, data: Any) -> Any:
        raise MemoryError("Unable to allocate 1 PiB")


def test_a_model_with_a_step_of_its_own_is_not_split() -> None:
    inputs = keras.Input((6,))
    model = OwnStep(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(
        AnyrigError, match=r"step 1 \(Unable to allocate 1 PiB\): a model with a training step"
    ) as error:
        Rig(1).fit(model, X, Y, verbose=0)
    assert error.value.code == "ANY-TRAIN-041"


def policy_on(plan: DevicePlan) -> tuple[OutOfMemoryPolicy, Any]:
    def remake(virtual_replicas: int, *, in_turn: bool) -> Any:
        made = replace(device_plan(plan.devices, virtual_replicas), in_turn=in_turn)
        return SimpleNamespace(plan=made)

    return OutOfMemoryPolicy(choice="split", remake=remake), remake(plan.virtual_replicas, in_turn=False)


BATCH = (np.zeros((64, 1)), None, None)
FOUND = OutOfMemory("no memory", half_made=False)


@pytest.mark.parametrize(
    ("devices", "turns"),
    [(("/device:CPU:0", "/device:CPU:1"), True), (("/device:GPU:0", "/device:GPU:1"), False), (("/CPU:0",), False)],
)
def test_devices_with_one_memory_take_turns_before_v_is_doubled_at_most_three_times(
    devices: tuple[str, ...], turns: bool
) -> None:
    policy, engine = policy_on(device_plan(devices, 2))
    for expected in [*[(2, True)] * turns, (4, turns), (8, turns), (16, turns)]:
        engine = policy.smaller(engine, BATCH, 9, FOUND)
        assert (engine.plan.virtual_replicas, engine.plan.in_turn) == expected
    with pytest.raises(AnyrigError, match="V was doubled 3 times already"):
        policy.smaller(engine, BATCH, 9, FOUND)
    assert [fork["step"] for fork in policy.forks] == [10] * 3
    policy.went_back(4)
    assert [fork["step"] for fork in policy.forks] == [5] * 3


IN_TURN = """
from anyrig.topology.devices import configure
configure(2)
from anyrig.state.capture import capture
from anyrig.store.digest import state_digest_of
from anyrig.train.rig import Rig
from tests.unit.hungry import build, fit, fits
fits["really"] = True

def waits(engine):
    '''Tell whether the micro-batch of the second device is done after that of the first.'''
    graph = next(iter(engine._functions.values())).graph
    first, second = [op for op in graph.get_operations() if "micro" in str(op.node_def.attr["f"].func.name)]
    waiting, seen = [second], set()
    while waiting:
        op = waiting.pop()
        seen.add(op.name)
        before = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        waiting += [op for op in before if op.name not in seen]
    return first.name in seen

rig = Rig(2)
model, other = rig.build(build), rig.build(build)
take_turns = rig._known.take_turns
rig._known.take_turns = lambda model: (fits.update(rows=48), take_turns(model))  # by turns it fits
fit(rig, other, 2)
fits.update(rows=1, really=True)
fit(rig, model, 2, verbose=2)
print(*(waits(rig._known.engine(m, None, 2)) for m in (other, model)))
print(*(state_digest_of(capture(m).tensors, 0) for m in (other, model)))
"""


def test_taking_turns_lets_one_micro_batch_at_a_time_into_memory_and_changes_no_bytes() -> None:
    out = run_python(IN_TURN, cwd=Path(__file__).parents[2]).stdout
    *lines, waits, digests = out.splitlines()
    assert any("out of memory at step 1: the devices share one memory, so they work in turn" in line for line in lines)
    assert waits == "False True"
    assert len(set(digests.split())) == 1
