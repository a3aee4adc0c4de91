"""Cases: every optimizer of Keras on one model, and what can be set in them; precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from tests.multi.zoo import CASES, Case, Entry, arrays, compiled, floats, integers, kind, stack

optimizer_kind, precision_kind = kind("Optimizers"), kind("Precision")


def _model() -> keras.Model:
    """Return a model with a large kernel, a convolution and an Embedding: gradients of all kinds."""
    words, image = keras.Input((3,), dtype="int32"), keras.Input((5, 5, 1))
    features = [layers.Flatten()(layers.Embedding(7, 4)(words)), layers.Flatten()(layers.Conv2D(3, 3)(image))]
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()(features))
    return keras.Model([words, image], layers.Dense(2)(hidden))


_FIT = arrays([integers(7, 3), floats(5, 5, 1)], floats(2, seed=2))


def _case(optimizer: Callable[[], Any]) -> Case:
    return Case(lambda: compiled(_model(), optimizer=optimizer()), _FIT)


def _add(name: str, title: str, optimizer: Callable[[], Any]) -> None:
    CASES[name] = Entry("Optimizers", title, lambda: _case(optimizer))


optimizers, schedules = keras.optimizers, keras.optimizers.schedules
for _name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam",
              "RMSprop", "SGD"):  # fmt: skip
    _add(_name.lower(), _name, lambda name=_name: getattr(optimizers, name)(0.01))  # type: ignore[misc]
_add("sgd_nesterov", "SGD, Nesterov momentum", lambda: optimizers.SGD(0.01, momentum=0.9, nesterov=True))
_add("rmsprop_centered", "RMSprop, centered, momentum", lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True))
_add("adam_amsgrad", "Adam, amsgrad", lambda: optimizers.Adam(0.01, amsgrad=True))
_add("clipvalue", "Clipping of values", lambda: optimizers.SGD(0.1, clipvalue=0.02))
_add("clipnorm", "Clipping of each gradient's norm", lambda: optimizers.SGD(0.1, clipnorm=0.1))
_add("global_clipnorm", "Clipping of the norm of all gradients", lambda: optimizers.SGD(0.1, global_clipnorm=0.1))
_add("weight_decay", "Weight decay", lambda: optimizers.SGD(0.05, weight_decay=0.01))
_add("ema", "EMA of weights, overwriting them", lambda: optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2))
_add("schedule", "A schedule with warm-up", lambda: optimizers.SGD(schedules.CosineDecay(0.0, 6, warmup_target=0.1, warmup_steps=2)))  # noqa: E501  # fmt: skip
_add("accumulation", "Accumulation of two steps", lambda: optimizers.SGD(0.05, gradient_accumulation_steps=2))
_add("loss_scale", "LossScaleOptimizer in float32", lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01)))


@optimizer_kind
def schedulefreeadamw() -> Case:
    """ScheduleFreeAdamW, built in the model function.

    Keras's `fit` builds an optimizer in the first step's trace, which loses the start of this one's averages: they, and
    with them the weights, begin at zero. `Rig.fit` builds it before the first step.
    """

    def build() -> keras.Model:
        model = compiled(_model(), optimizer=optimizers.ScheduleFreeAdamW(0.01))
        model.optimizer.build(model.trainable_variables)
        return model

    return Case(build, _FIT)


@optimizer_kind
def all_together() -> Case:
    """AdamW with clipping, EMA, schedule and accumulation."""

    def optimizer() -> Any:
        rate = schedules.ExponentialDecay(0.02, 2, 0.8)
        averages = {"use_ema": True, "ema_momentum": 0.9}
        return optimizers.AdamW(rate, global_clipnorm=0.5, gradient_accumulation_steps=2, **averages)

    return _case(optimizer)


@optimizer_kind
def several_optimizers() -> Case:
    """Several optimizers in one model: MultiOptimizer."""

    def build() -> keras.Model:
        model = stack((4,), layers.Dense(5, name="first"), layers.Dense(1, name="second"))
        chosen = optimizers.OptimizerMap(optimizers.Adam(0.01))
        chosen["first/.*"] = optimizers.SGD(0.1)
        return compiled(model, optimizer=optimizers.MultiOptimizer(chosen))

    return Case(build, arrays(floats(4), floats(1, seed=2)))


def _mixed() -> keras.Model:
    convolution = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(3, activation="softmax", dtype="float32")]
    model = stack((6, 6, 2), *convolution, *head)
    return compiled(model, "sparse_categorical_crossentropy", optimizers.Adam(0.01), metrics=["accuracy"])


@precision_kind
def mixed_bfloat16() -> Case:
    """mixed_bfloat16."""
    return Case(_mixed, arrays(floats(6, 6, 2), integers(3)), precision="mixed_bfloat16")


@precision_kind
def mixed_float16() -> Case:
    """mixed_float16, with the loss scale that Keras adds."""
    return Case(_mixed, arrays(floats(6, 6, 2), integers(3)), precision="mixed_float16")


@precision_kind
def policies_of_layers() -> Case:
    """Policies of single layers: mixed_bfloat16, bfloat16 weights, float64."""

    def build() -> keras.Model:
        middle = [layers.Dense(5, dtype="mixed_bfloat16"), layers.Dense(5, dtype="bfloat16")]
        return compiled(stack((4,), *middle, layers.Dense(4, dtype="float64"), layers.Dense(1)))

    return Case(build, arrays(floats(4), floats(1, seed=2)))
