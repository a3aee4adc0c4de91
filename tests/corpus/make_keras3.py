"""Writes tests/corpus/keras3: models of Keras 3 in all its formats, with what they hold and compute.

    python tests/corpus/make_keras3.py [NAME...]

Each model is trained for three steps. NAME.zip then has `model.keras`, `model.weights.h5`, `model.h5` (the older
layout), `sharded.weights.json` with its files, `saved_model/` (`export`), `checkpoint.*` (`tf.train.Checkpoint`) and
`expected.npz`: `inputs/N`, `outputs/N`, `targets/N` of one batch, the weights `weight/NNN/PATH` in the order of
`get_weights()`, the optimizer's variables `optimizer/NNN/PATH`, and `after/NNN/PATH`, the weights when one more step
was trained on that batch.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent / "keras3"
ROWS, STEPS = 4, 3
SHARD_GB = 1e-6
layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers

Array = np.ndarray[Any, Any]
Made = tuple[Any, Sequence[Array], Sequence[Array]]


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype("float32")


def integers(seed: int, below: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, below, size=(ROWS, *shape)).astype("int32")


def mlp() -> Made:
    model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dropout(0.0), layers.Dense(3)])
    model.compile(optimizers.Adam(0.01), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model, [floats(1, 5)], [integers(2, 3)]


def two_two() -> Made:
    first, second = keras.Input((4,), name="first"), keras.Input((3,), name="second")
    mixed = layers.Concatenate()([layers.Dense(5, "tanh")(first), second])
    outputs = [layers.Dense(2, "sigmoid", name="main")(mixed), layers.Dense(1, name="side")(second)]
    model = keras.Model([first, second], outputs)
    named = {"main": "binary_crossentropy", "side": "mse"}
    model.compile(optimizers.SGD(0.1, momentum=0.9, nesterov=True), named, loss_weights={"main": 1.0, "side": 0.5})
    return model, [floats(3, 4), floats(4, 3)], [integers(5, 2, 2).astype("float32"), floats(6, 1)]


def cnn() -> Made:
    model = keras.Sequential([keras.Input((8, 8, 2)), layers.Conv2D(3, 3, padding="same", use_bias=False)])
    model.add(layers.BatchNormalization(momentum=0.9))
    for layer in (layers.Activation("relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(2)):
        model.add(layer)
    model.compile(optimizers.RMSprop(0.01, momentum=0.5, centered=True), losses.CategoricalCrossentropy(True))
    return model, [floats(7, 8, 8, 2)], [np.eye(2, dtype="float32")[integers(8, 2)]]


def separable() -> Made:
    model = keras.Sequential([keras.Input((9, 9, 3)), layers.ZeroPadding2D(1)])
    model.add(layers.SeparableConv2D(4, 3, strides=2, depth_multiplier=2, activation="elu"))
    model.add(layers.DepthwiseConv2D(2, depth_multiplier=2, padding="same"))
    model.add(layers.Conv2DTranspose(3, 2, strides=2, activation="silu"))
    for layer in (layers.LeakyReLU(0.2), layers.GlobalAveragePooling2D(), layers.GroupNormalization(3)):
        model.add(layer)
    model.add(layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)))
    model.compile(optimizers.Adagrad(0.05), "mae")
    return model, [floats(9, 9, 9, 3)], [floats(10, 1)]


def lstm() -> Made:
    model = keras.Sequential([keras.Input((6, 3)), layers.Masking(0.0), layers.LSTM(4, return_sequences=True)])
    model.add(layers.LSTM(3, unit_forget_bias=False, go_backwards=True))
    model.add(layers.Dense(1))
    rate = optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
    model.compile(optimizers.Adam(rate, amsgrad=True), "huber", weighted_metrics=["mse"])
    rows = floats(11, 6, 3)
    rows[1, 4:] = 0
    return model, [rows], [floats(12, 1)]


def gru() -> Made:
    model = keras.Sequential([keras.Input((5, 3)), layers.GRU(4, return_sequences=True)])
    model.add(layers.GRU(3, reset_after=False, return_sequences=True))
    model.add(layers.SimpleRNN(2, activation="relu"))
    model.compile(optimizers.Nadam(0.02, clipnorm=1.0), losses.LogCosh())
    return model, [floats(15, 5, 3)], [floats(16, 2)]


def bidirectional() -> Made:
    model = keras.Sequential([keras.Input((5, 3))])
    model.add(layers.Bidirectional(layers.LSTM(3, return_sequences=True), merge_mode="sum"))
    model.add(layers.Bidirectional(layers.GRU(2), name="both"))
    model.compile(optimizers.Lion(0.01), "mape")
    return model, [floats(17, 5, 3)], [floats(18, 4)]


def attention() -> Made:
    words = keras.Input((6,), dtype="int32")
    vectors = layers.Embedding(11, 8, mask_zero=True)(words)
    seen = layers.MultiHeadAttention(2, 4)(vectors, vectors)
    mixed = layers.LayerNormalization(epsilon=1e-5)(vectors + seen)
    outputs = layers.Dense(2)(layers.GlobalAveragePooling1D()(mixed))
    model = keras.Model(words, outputs)
    model.compile(optimizers.AdamW(0.01, weight_decay=0.02), losses.SparseCategoricalCrossentropy(True))
    return model, [integers(19, 10, 6) + 1], [integers(20, 2)]


def nested() -> Made:
    x = keras.Input((6, 6, 2))
    inner = keras.Model(x, layers.BatchNormalization()(layers.Conv2D(3, 3, name="deep")(x)), name="inner")
    middle = keras.Sequential([inner, layers.ReLU(max_value=6.0), layers.BatchNormalization()], name="middle")
    inputs = keras.Input((6, 6, 2))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalMaxPooling2D()(middle(inputs))), name="outer")
    inner.layers[1].trainable = False
    model.compile(optimizers.Adamax(0.05), "msle")
    return model, [floats(21, 6, 6, 2)], [np.abs(floats(22, 1))]


def shared() -> Made:
    left, right = keras.Input((4,)), keras.Input((4,))
    base = layers.Dense(3, "selu", name="twins")
    apart = layers.Subtract()([base(left), base(right)])
    again = layers.Dot(1, normalize=True)([base(left), base(right)])
    model = keras.Model([left, right], layers.Dense(1, "sigmoid")(layers.Concatenate()([apart, again])))
    model.compile(optimizers.Adadelta(0.5), "binary_crossentropy", metrics=["accuracy"])
    return model, [floats(23, 4), floats(24, 4)], [integers(25, 2, 1).astype("float32")]


def normalized() -> Made:
    scale = layers.Normalization(name="scale")
    scale.adapt(floats(26, 3) * 5 + 2)
    inputs = keras.Input((3,))
    x = layers.UnitNormalization()(keras.ops.relu(layers.Dense(4)(scale(inputs))) * 2.0 + 1.0)
    model = keras.Model(inputs, layers.Dense(1)(layers.PReLU()(x)))
    model.compile(optimizers.Ftrl(0.05), "mse")
    return model, [floats(28, 3)], [floats(29, 1)]


def mixed() -> Made:
    model = keras.Sequential([keras.Input((4, 4, 2)), layers.Conv2D(4, 2, activation="relu", dtype="mixed_float16")])
    for layer in (layers.UpSampling2D(interpolation="bilinear"), layers.AveragePooling2D(2), layers.Flatten()):
        model.add(layer)
    model.add(layers.Dense(2, dtype="bfloat16"))
    model.add(layers.Softmax(dtype="float32"))
    model.compile(optimizers.Adam(0.01, use_ema=True), losses.CategoricalCrossentropy())
    return model, [floats(30, 4, 4, 2)], [np.eye(2, dtype="float32")[integers(31, 2)]]


def words() -> Made:
    split = layers.TextVectorization(max_tokens=9, output_sequence_length=4, name="split")
    split.adapt(np.array(["the cat sat", "the dog sat", "a bird flew"]))
    inputs = keras.Input((), dtype="string")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(9, 3)(split(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(optimizers.Adam(0.01), "mse")
    return model, [np.array(["the cat", "a dog flew", "unknown", ""])], [floats(33, 1)]


MODELS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        *(mlp, two_two, cnn, separable, lstm, gru, bidirectional, attention, nested, shared, normalized, mixed, words),
    )
}


def numbered(kind: str, variables: Sequence[Any]) -> dict[str, Array]:
    """Return values by number and path; bfloat16, which numpy's files do not have, as float32, which can hold it."""
    values = {f"{kind}/{n:03d}/{v.path}": np.asarray(keras.ops.convert_to_numpy(v)) for n, v in enumerate(variables)}
    return {name: value.astype("float32") if value.dtype.kind == "V" else value for name, value in values.items()}


def as_one(values: Sequence[Any]) -> Any:
    given = [tf.constant(value) if value.dtype.kind == "U" else value for value in values]
    return given[0] if len(given) == 1 else given


def write(name: str) -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model, inputs, targets = MODELS[name]()
    for _ in range(STEPS):
        model.train_on_batch(as_one(inputs), as_one(targets))
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), model, inputs, targets)
        pack(Path(folder), HERE / f"{name}.zip")


def write_files(folder: Path, model: Any, inputs: Sequence[Array], targets: Sequence[Array]) -> None:
    x, y = as_one(inputs), as_one(targets)
    predicted = model.predict(x, verbose=0)
    found = {f"inputs/{n}": array for n, array in enumerate(inputs)}
    found |= {f"targets/{n}": array for n, array in enumerate(targets)}
    found |= {f"outputs/{n}": a for n, a in enumerate(predicted if isinstance(predicted, list) else [predicted])}
    found |= numbered("weight", model.weights) | numbered("optimizer", model.optimizer.variables)
    model.save(folder / "model.keras")
    model.save(folder / "model.h5")
    model.save_weights(folder / "model.weights.h5")
    model.save_weights(folder / "sharded.weights.json", max_shard_size=SHARD_GB)
    model.export(str(folder / "saved_model"), verbose=False)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "checkpoint"))
    model.train_on_batch(x, y)
    everything: dict[str, Any] = found | numbered("after", model.weights)
    np.savez_compressed(folder / "expected.npz", **everything)


def pack(folder: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = zipfile.ZipInfo(str(file.relative_to(folder)))
                archive.writestr(name, file.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)


if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        write(each)
        print(each, (HERE / f"{each}.zip").stat().st_size)
