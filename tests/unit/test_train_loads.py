"""What a run loads when it goes on, or starts from weights, is seen in its logs; a changed optimizer needs a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError
from anyrig.events import read_events
from tests.unit.test_report_loggers import scalars

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 1)).astype("float32")


def run(folder: Path, epochs: int, optimizer: Any = keras.optimizers.Adam, **more: Any) -> anyrig.Run:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(optimizer(0.01), "mse")
        return model

    batch = anyrig.Batch(global_size=8, virtual_replicas=1)
    made = anyrig.Run(folder, build, train=(X, Y), batch=batch, epochs=epochs, loggers=["tensorboard", "jsonl"], **more)
    made.train(verbose=0)
    return made


def loads(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["kind"] == "load"]


def test_S2_12_loads_of_a_resume_and_a_warm_start_reach_events_jsonl_and_tensorboard(tmp_path: Path) -> None:
    run(tmp_path / "a", 1)
    assert loads(tmp_path / "a") == []
    run(tmp_path / "a", 2)
    run(tmp_path / "b", 1, init_from=tmp_path / "a")
    (resumed,), (warm,) = loads(tmp_path / "a"), loads(tmp_path / "b")
    assert (resumed["step"], resumed["left"], resumed["cast"]) == (2, {}, {})
    assert resumed["source"].endswith("step-000000002")
    assert (warm["step"], warm["tensors"], warm["bytes"]) == (0, 4, 4 * (4 * 3 + 3 + 3 + 1))
    assert set(warm["left"].values()) == {"not asked for"}
    for folder, event in ((tmp_path / "a", resumed), (tmp_path / "b", warm)):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        line, first = [line for line in lines if line["kind"] == "load"]
        assert (first["step"], isinstance(first["first_loss"], float)) == (event["step"] + 1, True)
        assert (line["step"], line["tensors"], line["bytes"]) == (event["step"], event["tensors"], event["bytes"])
        assert scalars(folder / "tensorboard")["load/tensors"] == [(event["step"], event["tensors"])]
    assert [line["kind"] for line in map(json.loads, (tmp_path / "a" / "metrics.jsonl").read_text().splitlines())] == [
        *("epoch", "load", "load", "epoch"),
    ]


def test_a_changed_optimizer_goes_on_when_it_is_allowed(tmp_path: Path) -> None:
    run(tmp_path / "a", 1)
    with pytest.raises(AnyrigError, match="--allow-changes optimizer") as caught:
        run(tmp_path / "a", 2, keras.optimizers.SGD)
    assert caught.value.code == "ANY-RUN-003"
    with pytest.raises(AnyrigError, match="--allow-changes optimizer") as caught:
        run(tmp_path / "a", 2, keras.optimizers.SGD, allow_changes=["recipe"])
    assert caught.value.code == "ANY-STATE-017"
    went_on = run(tmp_path / "a", 2, keras.optimizers.SGD, allow_changes=["optimizer"])
    (load,) = loads(tmp_path / "a")
    assert set(load["started"]) == {"optimizer/main/iterations", "optimizer/main/learning_rate"}
    assert (
        load["left"]["optimizer/main/dense.0/kernel/velocity"] == "the checkpoint's optimizer is Adam, the model's SGD"
    )
    assert len(went_on.history["loss"]) == 2
