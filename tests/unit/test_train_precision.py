"""Precision: settled before the model is built, stated, recorded, and crossed only when asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import UsageError
from anyrig.state.capture import capture
from anyrig.state.restore import restore
from anyrig.store.commit import newest_sound
from anyrig.topology.plan import PRECISIONS
from anyrig.train.precision import found_in
from anyrig.train.rig import Rig

layers = keras.layers
X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1].copy()
BATCH = anyrig.Batch(global_size=8, virtual_replicas=2)


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dense(1, dtype="float32")])
    model.compile("adam", "mse")
    return model


def run(folder: Path, precision: str, epochs: int, **given: Any) -> anyrig.Run:
    return anyrig.Run(folder, build, train=(X, Y), batch=BATCH, epochs=epochs, devices=1, precision=precision, **given)


def tensors(model: keras.Model) -> dict[str, bytes]:
    return {tensor.name: tensor.array.tobytes() for tensor in capture(model).tensors}


def test_the_model_is_built_in_the_rigs_precision_and_keras_is_put_back() -> None:
    rig = Rig(1, precision="mixed_float16")
    model = rig.build(build)
    assert [layer.compute_dtype for layer in model.layers] == ["float16", "float32"]
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert "precision mixed_float16" in repr(rig)
    with pytest.raises(ZeroDivisionError):
        rig.build(lambda: 1 / 0)
    assert keras.config.dtype_policy().name == "float32"


def test_auto_takes_the_policy_that_the_user_set() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        assert Rig(1).precision.policy == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_model_built_elsewhere_is_taken_as_it_is_and_the_header_says_what_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hidden = [layers.Dense(4, dtype="mixed_bfloat16") for _ in range(2)]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse")
    assert found_in(model) == "mixed_bfloat16, in 1 of 3 layers float32"
    Rig(1).fit(model, X, Y, batch=BATCH, verbose=2)
    assert "precision          mixed_bfloat16, in 1 of 3 layers float32\n" in capsys.readouterr().out


def test_a_run_goes_on_in_the_precision_it_was_started_in_and_another_has_to_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "mixed_bfloat16", 1).train(verbose=0)
    second = run(tmp_path, "auto", 2)
    second.train(verbose=2)
    assert second.model.layers[0].compute_dtype == "bfloat16"
    assert "changed: precision" not in (printed := capsys.readouterr().out)
    assert "the run was started in it" in printed
    with pytest.raises(UsageError, match="precision: mixed_bfloat16, in 1 of 2 layers float32 -> float32\n") as error:
        run(tmp_path, "float32", 3).train(verbose=0)
    assert "--allow-changes precision" in str(error.value)
    run(tmp_path, "mixed_float16", 3, allow_changes=("precision",)).train(verbose=2)
    printed = capsys.readouterr().out
    assert "changed: precision: mixed_bfloat16, in 1 of 2 layers float32 -> mixed_float16, in 1 of 2" in printed
    assert "optimizer/main/loss_scale/dynamic_scale: not stored: begins anew" in printed
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert any("precision" in line for event in events for line in event.get("changed", ()))
    stored, _ = newest_sound(tmp_path / "checkpoints")
    assert stored is not None
    assert (stored.progress["precision"], stored.progress["step"]) == ("mixed_float16", 9)


SCALARS = {f"optimizer/main/loss_scale/{n}" for n in ("iterations", "learning_rate", "step_counter", "dynamic_scale")}


@pytest.mark.parametrize("first", ["float32", "mixed_float16"])
def test_U13_B077_checkpoints_cross_precisions_with_the_optimizer(first: str, tmp_path: Path) -> None:
    trained = run(tmp_path, first, 1)
    trained.train(verbose=0)
    stored, _ = newest_sound(tmp_path / "checkpoints")
    assert stored is not None
    before = tensors(trained.model)
    assert (set(before) >= SCALARS) == (first == "mixed_float16")
    kept = {name for name in before if not name.startswith("metrics/")} - SCALARS
    assert len(kept) == 4 + 2 * 4 + 2  # weights, two slots each, iterations and learning rate
    for second in PRECISIONS[1:]:
        model = Rig(1, precision=second).build(build)
        model.optimizer.build(model.trainable_variables)
        if second == "mixed_float16":
            model.optimizer.dynamic_scale.assign(3.0)
        report, after = restore(stored, model, metrics=False), tensors(model)
        assert {name: before[name] for name in kept} == {name: after[name] for name in kept}
        scaled = {precision for precision in (first, second) if precision == "mixed_float16"}
        assert set(report.started) == (SCALARS if scaled == {second} != {first} else set())
        assert SCALARS & set(report.ignored) == (SCALARS if scaled == {first} != {second} else set())
        if second == "mixed_float16":
            expected = trained.model.optimizer.dynamic_scale if first == second else model.optimizer.initial_scale
            assert float(model.optimizer.dynamic_scale.numpy()) == float(expected)
