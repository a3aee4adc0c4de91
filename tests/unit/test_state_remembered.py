"""A model's plan of its last save is used again only where a new one would be the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from anyrig.state.capture import CapturePlan, plan_capture
from anyrig.state.remembered import remembered_plan
from anyrig.state.tree import walk_layers

layers = keras.layers
X, Y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")


@keras.saving.register_keras_serializable("tests")
class Blocks(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))
        self.second = layers.Dense(3)
        self.more = [layers.Dropout(0.5), [layers.Dense(3)]]
        self.named = {"last": layers.Dense(2)}
        self.note = "as it was"

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in (self.first, self.second, self.more[0], *self.more[1]):
            x = layer(x, training=training) if isinstance(layer, layers.Dropout) else layer(x)
        return self.named["last"](x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "note": self.note, "l2": float(self.first.kernel_regularizer.l2)}


def built() -> Blocks:
    model = Blocks()
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    return model


def swap(model: Blocks) -> None:
    model.first, model.second = model.second, model.first
    model.first.kernel_regularizer = model.second.kernel_regularizer


CHANGES: dict[str, Callable[[Blocks], Any]] = {
    "attributes swapped": swap,
    "rate": lambda model: setattr(model.more[0], "rate", 0.1),
    "frozen": lambda model: setattr(model.second, "trainable", False),
    "regulariser changed in place": lambda model: setattr(model.first.kernel_regularizer, "l2", np.float32(0.5)),
    "other optimizer": lambda model: model.compile("sgd", "mse"),
    "same optimizer anew": lambda model: model.compile("adam", "mse"),
    "other name": lambda model: setattr(model.named["last"], "_name", "renamed"),
    "own argument": lambda model: setattr(model, "note", "changed"),
    "metrics": lambda model: (model.compile(model.optimizer, "mse", metrics=["mae"]), model.evaluate(X, Y, verbose=0)),
}


def remembered(model: keras.Model) -> CapturePlan:
    return remembered_plan(model, optimizer=True, layers=walk_layers(model))


def told(plan: CapturePlan) -> Any:
    named = [(item.name, id(item.variable), item.aliases, item.place) for item in (*plan.before, *plan.after)]
    return named, plan.documents, [id(each) for each in plan.optimizers]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str) -> None:
    model = built()
    before = remembered(model)
    CHANGES[change](model)
    now = remembered(model)
    assert now is not before
    assert told(now) == told(plan_capture(model))


def test_training_changes_nothing() -> None:
    model = built()
    before = remembered(model)
    model.fit(X, Y, verbose=0)
    model.train_on_batch(X, Y)
    model.predict(X, verbose=0)
    assert remembered(model) is before
    assert told(before) == told(plan_capture(model))


def test_with_and_without_the_optimizer() -> None:
    model = built()
    with_it = remembered(model)
    without = remembered_plan(model, optimizer=False, layers=walk_layers(model))
    assert [item.name for item in without.after if item.name.startswith("optimizer/")] == []
    assert told(remembered(model)) == told(with_it)
