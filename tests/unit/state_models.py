"""Models of many kinds for the tests of `anyrig.state`, and a checkpoint that lives in memory.

Each builder makes a new, built model whose values differ from the last one's; `ZOO` lists them by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from anyrig.state.capture import Captured, capture

layers = keras.layers


class Source:
    """What `restore` asks of a checkpoint, answered from a `Captured`."""

    def __init__(self, captured: Captured) -> None:
        self._tensors = {tensor.name: tensor for tensor in captured.tensors}
        self._assets = captured.assets
        self.reads: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    @property
    def assets(self) -> tuple[str, ...]:
        return tuple(self._assets)

    @property
    def manifest(self) -> Any:
        entries = [
            SimpleNamespace(
                name=t.name, aliases=t.aliases, place=t.place, dtype=t.array.dtype.name, shape=t.array.shape
            )
            for t in self._tensors.values()
        ]
        return SimpleNamespace(tensors=entries)

    @property
    def record(self) -> dict[str, Any]:
        return {}

    def tensors(self, names: Iterable[str], *, verify: str = "off") -> dict[str, np.ndarray[Any, Any]]:
        self.reads += (names := list(names))
        return {name: self._tensors[name].array for name in names}

    def asset(self, path: str) -> bytes:
        return self._assets[path]


def contents(captured: Captured) -> dict[str, tuple[Any, ...]]:
    """Return everything that must survive a round trip, as bytes."""
    tensors = {t.name: (t.array.dtype.name, t.array.shape, t.array.tobytes(), t.place) for t in captured.tensors}
    return tensors | {f"assets/{path}": (content,) for path, content in captured.assets.items()}


def state_of(model: keras.Model) -> dict[str, tuple[Any, ...]]:
    return contents(capture(model))


def scramble(model: keras.Model) -> None:
    """Give every float variable other values, so that a restore has something to do."""
    for index, variable in enumerate(model.variables):
        if keras.backend.is_float_dtype(variable.dtype):
            rng = np.random.default_rng(index)
            variable.assign(rng.uniform(0.1, 1.0, tuple(variable.shape)).astype("float32"))


class TwoHeads(layers.Layer):
    """A hand-made block: sub-layers of one class, variables of one name (B015, B016, U-names)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.query = layers.Dense(4)
        self.value = layers.Dense(4)
        self.loose = [keras.Variable(1.0), keras.Variable(2.0, trainable=False)]

    def build(self, shape: Any) -> None:
        self.query.build(shape)
        self.value.build(shape)
        self.up = self.add_weight(name="scale", shape=(4,))
        self.down = self.add_weight(name="scale", shape=(4,))

    def call(self, x: Any) -> Any:
        return self.query(x) * self.up + self.value(x) * self.down


class Nested(layers.Layer):
    """Layers in lists of lists, tuples and dicts (B176)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.blocks = [[layers.Dense(4), layers.Dense(4)], [layers.Dense(4)]]
        self.by_name = {"left": (layers.Dense(4), {"deep": [layers.Dense(4)]}), "a/b": layers.Dense(4)}

    def call(self, x: Any) -> Any:
        for layer in [*self.blocks[0], *self.blocks[1]]:
            x = layer(x)
        left, deep = self.by_name["left"]
        return self.by_name["a/b"](left(x) + deep["deep"][0](x))


class BuildsLate(layers.Layer):
    """Sub-layers made in build() (B175)."""

    def build(self, shape: Any) -> None:
        self.late = [layers.Dense(4) for _ in range(2)]
        for layer in self.late:
            layer.build(shape)

    def call(self, x: Any) -> Any:
        return self.late[1](self.late[0](x))


class NoBuild(layers.Layer):
    """Built-in members and no build() (B181)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = layers.Dense(4)
        self.drop = layers.Dropout(0.5)

    def call(self, x: Any) -> Any:
        return self.drop(self.first(x))


class Tied(layers.Layer):
    """One variable in two layers, one layer under two attributes."""

    def build(self, shape: Any) -> None:
        self.encoder = layers.Dense(4, use_bias=False)
        self.encoder.build(shape)
        self.same = self.encoder
        self.borrowed = self.encoder.kernel

    def call(self, x: Any) -> Any:
        return self.encoder(x) @ self.borrowed


class SavesItself(layers.Layer):
    """Overrides both ways of saving: arrays of its own names, and a file."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(4,))
        self.note = "fresh"

    def call(self, x: Any) -> Any:
        return x * self.w

    def save_own_variables(self, store: Any) -> None:
        store["weight in metres"] = self.w
        store["doubled"] = np.asarray(self.w.numpy() * 2)

    def load_own_variables(self, store: Any) -> None:
        halved = store["doubled"]
        halved /= 2  # Keras gives arrays of one's own
        assert np.array_equal(halved, store["weight in metres"])
        self.w.assign(store["weight in metres"])

    def save_assets(self, folder: str) -> None:
        os.makedirs(os.path.join(folder, "sub"))
        with open(os.path.join(folder, "sub", "note.txt"), "w") as file:
            file.write(self.note)

    def load_assets(self, folder: str) -> None:
        with open(os.path.join(folder, "sub", "note.txt")) as file:
            self.note = file.read()


class WithAttributes(keras.Model):
    """A subclass of Functional: graph names win, attributes are aliases."""

    def __init__(self) -> None:
        inputs = keras.Input((4,))
        first = layers.Dense(4)
        named = layers.Dense(4, name="named")
        super().__init__(inputs, named(first(inputs)))
        self.first = first
        self.stack = [named]


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential([layers.Dense(4), layers.Dropout(0.5), layers.Dense(4)])
        self.nested = Nested()
        self.heads = TwoHeads(name="heads")
        self.noise = keras.random.SeedGenerator(7)
        self.steps = keras.Variable(0, dtype="int32", trainable=False, name="steps")

    def call(self, x: Any) -> Any:
        return self.heads(self.nested(self.body(x)))


def _functional(*stack: Any, shape: tuple[int, ...] = (4,)) -> keras.Model:
    inputs = keras.Input(shape)
    x = inputs
    for layer in stack:
        x = layer(x)
    return keras.Model(inputs, x)


def nested_models() -> keras.Model:
    inputs = keras.Input((4,), name="features")
    shared = layers.Dense(4, name="shared")
    inner = _functional(layers.Dense(4), layers.Dense(4))
    named = keras.Sequential([layers.Dense(4), layers.BatchNormalization()], name="tower")
    alpha, beta = layers.Dense(4, name="alpha")(inputs), layers.Dense(4)(inputs)
    x = layers.Concatenate()([alpha, beta, layers.Dense(4)(shared(inner(inputs))), shared(named(inputs))])
    return keras.Model(inputs, [layers.Dense(2)(x), layers.Dense(1, name="score")(x)])


def sequential() -> keras.Model:
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(4)]
    )


def attention() -> keras.Model:
    inputs = keras.Input((3, 4))
    x = layers.MultiHeadAttention(2, 2, dropout=0.1)(inputs, inputs)
    x = layers.GroupQueryAttention(2, 2, 1)(x, x)
    return keras.Model(inputs, layers.LayerNormalization()(x + inputs))


def recurrent() -> keras.Model:
    cells = [layers.LSTMCell(2), layers.GRUCell(2, dropout=0.1)]
    return _functional(
        layers.Bidirectional(layers.LSTM(2, return_sequences=True, recurrent_dropout=0.1)),
        layers.RNN(cells, return_sequences=True),
        layers.TimeDistributed(layers.Dense(4)),
        layers.SimpleRNN(2),
        shape=(3, 4),
    )


def stateful_recurrent() -> keras.Model:
    inputs = keras.Input(batch_shape=(2, 3, 4))
    return keras.Model(inputs, layers.GRU(2, stateful=True)(inputs))


def convolutional() -> keras.Model:
    return _functional(
        layers.RandomFlip(),
        layers.SpectralNormalization(layers.Conv2D(2, 2)),
        layers.SeparableConv2D(2, 2),
        layers.GroupNormalization(1),
        layers.GaussianNoise(0.1),
        layers.GlobalAveragePooling2D(),
        shape=(6, 6, 2),
    )


def low_rank() -> keras.Model:
    dense, embedding = layers.Dense(4), layers.Embedding(5, 4)
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, dense(embedding(inputs)))
    dense.enable_lora(2)
    embedding.enable_lora(2)
    return model


def half_precision() -> keras.Model:
    return _functional(layers.Dense(4, dtype="bfloat16"), layers.Dense(4, dtype="mixed_float16"), TwoHeads())


def normalised() -> keras.Model:
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng().normal(size=(16, 4)).astype("float32"))
    bins = layers.Discretization(num_bins=3, output_mode="one_hot")
    bins.adapt(np.random.default_rng().normal(size=(16, 4)).astype("float32"))
    inputs = keras.Input((4,))
    return keras.Model(inputs, [layers.Dense(2)(layer(inputs)), layers.Flatten()(bins(inputs))])


def frozen_part() -> keras.Model:
    inner = keras.Sequential([layers.Dense(4), layers.Dense(4)])
    model = keras.Sequential([keras.Input((4,)), inner, layers.Dense(4)])
    inner.layers[0].trainable = False
    return model


def subclassed() -> keras.Model:
    model = Subclassed()
    model(np.zeros((1, 4), "float32"))
    return model


ZOO: dict[str, Callable[[], keras.Model]] = {
    "nested_models": nested_models,
    "sequential": sequential,
    "attention": attention,
    "recurrent": recurrent,
    "stateful_recurrent": stateful_recurrent,
    "convolutional": convolutional,
    "low_rank": low_rank,
    "half_precision": half_precision,
    "normalised": normalised,
    "frozen_part": frozen_part,
    "subclassed": subclassed,
    "with_attributes": WithAttributes,
    "two_heads": lambda: _functional(TwoHeads(), TwoHeads()),
    "list_of_lists": lambda: _functional(Nested()),
    "builds_late": lambda: _functional(BuildsLate()),
    "no_build": lambda: _functional(NoBuild()),
    "tied": lambda: _functional(Tied()),
    "saves_itself": lambda: _functional(layers.Dense(4), SavesItself(), layers.Dropout(0.5)),
}
