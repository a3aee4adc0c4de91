"""Cases: how models are put together, and what in them trains."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from tests.multi.zoo import Case, arrays, compiled, floats, integers, kind, stack

model_kind = kind("Models")
CROSSENTROPY = "sparse_categorical_crossentropy"


@model_kind
def sequential() -> Case:
    """Sequential."""

    def build() -> keras.Model:
        model = stack((6,), layers.Dense(8, activation="relu"), layers.Dense(3, activation="softmax"))
        return compiled(model, CROSSENTROPY, metrics=["accuracy"])

    return Case(build, arrays(floats(6), integers(3)))


@model_kind
def functional_lists() -> Case:
    """Functional, two inputs and two outputs as lists."""

    def build() -> keras.Model:
        inputs = [keras.Input((4,)), keras.Input((3,))]
        hidden = layers.Dense(8, activation="tanh")(layers.Concatenate()(inputs))
        model = keras.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(3, activation="softmax")(hidden)])
        return compiled(model, ["mse", CROSSENTROPY], metrics=[["mae"], ["accuracy"]])

    return Case(build, arrays([floats(4), floats(3, seed=2)], [floats(1, seed=3), integers(3)]))


@model_kind
def functional_dicts() -> Case:
    """Functional, inputs and outputs as dicts, `loss_weights`."""

    def build() -> keras.Model:
        inputs = {"image": keras.Input((4, 4, 1), name="image"), "meta": keras.Input((3,), name="meta")}
        image = layers.Flatten()(layers.Conv2D(3, 3, activation="relu")(inputs["image"]))
        hidden = layers.Concatenate()([image, layers.Dense(4, activation="relu")(inputs["meta"])])
        outputs = {
            "price": layers.Dense(1, name="price")(hidden),
            "label": layers.Dense(3, activation="softmax", name="label")(hidden),
        }
        losses = {"price": "mae", "label": CROSSENTROPY}
        model = keras.Model(inputs, outputs)
        return compiled(model, losses, loss_weights={"price": 0.5, "label": 2.0}, metrics={"label": ["accuracy"]})

    x = {"image": floats(4, 4, 1), "meta": floats(3, seed=2)}
    return Case(build, arrays(x, {"price": floats(1, seed=3), "label": integers(3)}))


@model_kind
def shared_layers() -> Case:
    """Layers used twice (siamese)."""

    def build() -> keras.Model:
        left, right = keras.Input((5,)), keras.Input((5,))
        tower = layers.Dense(6, activation="tanh")
        norm = layers.BatchNormalization()
        both = layers.Subtract()([norm(tower(left)), norm(tower(right))])
        return compiled(keras.Model([left, right], layers.Dense(1, activation="sigmoid")(both)), "binary_crossentropy")

    return Case(build, arrays([floats(5), floats(5, seed=2)], integers(2, 1)))


@model_kind
def nested_models() -> Case:
    """Models inside models, one of them used twice."""

    def build() -> keras.Model:
        inner = stack((4,), layers.Dense(5, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.2))
        inputs = keras.Input((4,))
        middle = keras.Model(inputs, layers.Dense(4)(inner(inputs)))
        outer = keras.Input((4,))
        return compiled(keras.Model(outer, layers.Dense(1)(inner(middle(middle(outer))))))

    return Case(build, arrays(floats(4), floats(1, seed=2)))


class Blocks(keras.Model):
    """A subclassed model with layers in lists and dicts, built by its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [[layers.Dense(6), layers.LayerNormalization()] for _ in range(2)]
        self.heads = {"mean": layers.Dense(1), "gate": layers.Dense(1, activation="sigmoid")}
        self.dropout = layers.Dropout(0.3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return a gated mean."""
        hidden = inputs
        for dense, norm in self.blocks:
            hidden = keras.ops.relu(norm(dense(hidden)))
        hidden = self.dropout(hidden, training=training)
        return self.heads["mean"](hidden) * self.heads["gate"](hidden)


@model_kind
def subclassed() -> Case:
    """Subclassed, layers in lists and dicts, built by the first call."""
    return Case(lambda: compiled(Blocks(), metrics=["mae"]), arrays(floats(5), floats(1, seed=2)))


class TwoInputs(keras.Model):
    """A subclassed model that takes and returns a dict, without a `training` argument."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = {"a": layers.Dense(4, activation="relu"), "b": layers.Dense(4, activation="relu")}
        self.one, self.two = layers.Dense(1), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        """Return two outputs of the sum of both towers."""
        hidden = self.towers["a"](inputs["a"]) + self.towers["b"](inputs["b"])
        return {"one": self.one(hidden), "two": self.two(hidden)}


@model_kind
def subclassed_dicts() -> Case:
    """Subclassed, a dict in and a dict out."""
    x = {"a": floats(3), "b": floats(2, seed=2)}
    y = {"one": floats(1, seed=3), "two": floats(2, seed=4)}
    return Case(lambda: compiled(TwoInputs(), {"one": "mse", "two": "mae"}), arrays(x, y))


@model_kind
def frozen_part() -> Case:
    """A frozen part with BatchNormalization and Dropout under a head that trains."""

    def build() -> keras.Model:
        base = stack((4,), layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.2))
        base.trainable = False
        inputs = keras.Input((4,))
        return compiled(keras.Model(inputs, layers.Dense(1)(base(inputs))))

    return Case(build, arrays(floats(4), floats(1, seed=2)))


@model_kind
def lora() -> Case:
    """Layers with LoRA: only the low-rank parts and the head train."""

    def build() -> keras.Model:
        model = stack((6,), layers.Embedding(9, 4), layers.Flatten(), layers.Dense(8), layers.Dense(2))
        model.layers[0].enable_lora(2)
        model.layers[2].enable_lora(2)
        return compiled(model)

    return Case(build, arrays(integers(9, 6), floats(2)))


class Unusual(keras.Model):
    """A model whose loss does not reach all of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = layers.Dense(1), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Return the one, and call the other for nothing."""
        self.unused(inputs)
        return self.used(inputs)


@model_kind
def unused_weights() -> Case:
    """Weights that the loss does not reach."""
    return Case(lambda: compiled(Unusual()), arrays(floats(4), floats(1, seed=2)))


@model_kind
def constraints() -> Case:
    """Constraints on kernels and biases."""

    def build() -> keras.Model:
        hidden = layers.Dense(5, kernel_constraint=keras.constraints.MaxNorm(0.5), bias_constraint="non_neg")
        return compiled(stack((4,), hidden, layers.Dense(1, kernel_constraint="unit_norm")))

    return Case(build, arrays(floats(4), floats(1, seed=2)))


@model_kind
def autoencoder() -> Case:
    """An autoencoder with transposed convolutions and upsampling, its input as its target."""

    def build() -> keras.Model:
        encoder = [layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"), layers.MaxPooling2D(2)]
        decoder = [layers.Conv2DTranspose(4, 3, strides=2, padding="same"), layers.UpSampling2D(2), layers.Conv2D(1, 1)]
        return compiled(stack((8, 8, 1), *encoder, *decoder))

    images = floats(8, 8, 1)
    return Case(build, arrays(images, images))


class OwnTraining(keras.layers.Layer):
    """Draws from Keras's global generator and counts its calls."""

    def build(self, _: Any) -> None:
        """Make the counter."""
        self.calls = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="calls")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the inputs, in training with noise."""
        if not training:
            return inputs
        self.calls.assign_add(1)
        return inputs + keras.random.normal(keras.ops.shape(inputs), stddev=0.1)


@model_kind
def global_generator() -> Case:
    """An own layer that draws from Keras's global generator and counts its calls."""

    def build() -> keras.Model:
        return compiled(stack((4,), layers.Dense(5), OwnTraining(), layers.Dense(1)))

    return Case(build, arrays(floats(4), floats(1, seed=2)))


class RunningScale(keras.layers.Layer):
    """Divides by a running mean of absolute values, and counts the rows it has seen."""

    def build(self, _: Any) -> None:
        """Make the state and say how it is merged."""
        import anyrig

        self.scale = self.add_weight(shape=(), initializer="ones", trainable=False, name="scale")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")
        anyrig.merge_rule(self, "scale", "mean")
        anyrig.merge_rule(self, "seen", "sum")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return scaled inputs."""
        if training:
            self.scale.assign(0.9 * self.scale + 0.1 * keras.ops.mean(keras.ops.abs(inputs)))
            self.seen.assign_add(keras.ops.cast(keras.ops.shape(inputs)[0], "float32"))
        return inputs / self.scale


@model_kind
def declared_state() -> Case:
    """An own layer whose state is merged as `anyrig.merge_rule` says."""

    def build() -> keras.Model:
        return compiled(stack((4,), layers.Dense(5), RunningScale(), layers.Dense(1)))

    return Case(build, arrays(floats(4), floats(1, seed=2)))
