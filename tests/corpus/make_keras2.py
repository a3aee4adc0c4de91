"""Writes tests/corpus/keras2: models of Keras 2 in all its formats, with what they hold and compute.

Run by a Python that has `tf-keras==2.21.*` and `tensorflow-cpu==2.21.*` and not this project:

    TF_USE_LEGACY_KERAS=1 python tests/corpus/make_keras2.py [NAME...]

Each model is trained for three steps. NAME.zip then has `model.h5`, `weights.h5`, `model.keras`, `saved_model/`,
`checkpoint.*` (`save_weights(prefix)`) and `expected.npz`: `inputs/N`, `outputs/N`, `targets/N` of one batch, the
weights `weight/NNN/NAME` in the order of `get_weights()`, the optimizer's variables `optimizer/NNN/NAME`, and
`after/NNN/NAME`, the weights when one more step was trained on that batch.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tf_keras as keras  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).parent / "keras2"
ROWS, STEPS = 4, 3
layers, old = keras.layers, keras.optimizers.legacy

Array = np.ndarray[Any, Any]
Made = tuple[Any, Sequence[Array], Sequence[Array]]


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype("float32")


def integers(seed: int, below: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, below, size=(ROWS, *shape)).astype("int32")


def mlp() -> Made:
    model = keras.Sequential(
        [layers.Dense(6, "relu", input_shape=(5,)), layers.Dropout(0.0), layers.Dense(3, "softmax")]
    )
    model.compile(old.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, [floats(1, 5)], [integers(2, 3)]


def two_two() -> Made:
    first, second = keras.Input((4,), name="first"), keras.Input((3,), name="second")
    mixed = layers.Concatenate()([layers.Dense(5, "tanh")(first), second])
    side = layers.Dense(1, name="side", activity_regularizer="l2")(second)
    model = keras.Model([first, second], [layers.Dense(2, "sigmoid", name="main")(mixed), side])
    model.compile(
        old.SGD(0.1, momentum=0.9, nesterov=True, decay=0.5),
        {"main": "binary_crossentropy", "side": "mse"},
        loss_weights={"main": 1.0, "side": 0.5},
        metrics={"main": ["acc", keras.metrics.AUC(name="area")], "side": "mae"},
    )
    return model, [floats(3, 4), floats(4, 3)], [integers(5, 2, 2).astype("float32"), floats(6, 1)]


def cnn() -> Made:
    model = keras.Sequential([keras.Input((8, 8, 2))])
    model.add(layers.Conv2D(3, 3, padding="same", use_bias=False, kernel_initializer="he_normal"))
    model.add(layers.BatchNormalization(momentum=0.9))
    for layer in (layers.Activation("relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(2)):
        model.add(layer)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True), loss, metrics=["categorical_accuracy"])
    return model, [floats(7, 8, 8, 2)], [np.eye(2, dtype="float32")[integers(8, 2)]]


def separable() -> Made:
    model = keras.Sequential([keras.Input((9, 9, 3)), layers.ZeroPadding2D(1)])
    model.add(layers.SeparableConv2D(4, 3, strides=2, depth_multiplier=2, activation="elu"))
    model.add(layers.DepthwiseConv2D(2, depth_multiplier=2, padding="same"))
    model.add(layers.Conv2DTranspose(3, 2, strides=2, activation="swish"))
    for layer in (layers.LeakyReLU(0.2), layers.GlobalAveragePooling2D(keepdims=True), layers.Flatten()):
        model.add(layer)
    model.add(layers.Dense(1, kernel_regularizer=keras.regularizers.l1_l2(0.01, 0.02), kernel_constraint="max_norm"))
    model.compile(keras.optimizers.Adagrad(0.05), "mae")
    return model, [floats(9, 9, 9, 3)], [floats(10, 1)]


def lstm() -> Made:
    model = keras.Sequential([layers.Masking(0.0, input_shape=(6, 3)), layers.LSTM(4, return_sequences=True)])
    model.add(layers.LSTM(3, recurrent_activation="hard_sigmoid", unit_forget_bias=False, go_backwards=True))
    model.add(layers.Dense(1))
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
    model.compile(keras.optimizers.Adam(rate, amsgrad=True), "huber", weighted_metrics=["mse"])
    rows = floats(11, 6, 3)
    rows[1, 4:] = 0
    return model, [rows], [floats(12, 1)]


def gru_before() -> Made:
    model = keras.Sequential([layers.GRU(4, reset_after=False, input_shape=(5, 3)), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.8, clipnorm=1.0), "mse")
    return model, [floats(13, 5, 3)], [floats(14, 1)]


def gru_after() -> Made:
    model = keras.Sequential([layers.GRU(4, reset_after=True, return_sequences=True, input_shape=(5, 3))])
    model.add(layers.SimpleRNN(2, activation="relu"))
    model.compile(keras.optimizers.Nadam(0.02), keras.losses.LogCosh())
    return model, [floats(15, 5, 3)], [floats(16, 2)]


def bidirectional() -> Made:
    model = keras.Sequential([keras.Input((5, 3))])
    model.add(layers.Bidirectional(layers.LSTM(3, return_sequences=True), merge_mode="sum"))
    back = layers.GRU(2, go_backwards=True, reset_after=False)
    model.add(layers.Bidirectional(layers.GRU(2), backward_layer=back, name="both"))
    model.compile(old.RMSprop(0.01), "mape")
    return model, [floats(17, 5, 3)], [floats(18, 4)]


def attention() -> Made:
    words = keras.Input((6,), dtype="int32")
    vectors = layers.Embedding(11, 8, mask_zero=True)(words)
    seen = layers.MultiHeadAttention(2, 4)(vectors, vectors)
    mixed = layers.LayerNormalization(epsilon=1e-5)(vectors + seen)
    outputs = layers.Dense(2)(layers.GlobalAveragePooling1D()(mixed))
    model = keras.Model(words, outputs)
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.02), keras.losses.SparseCategoricalCrossentropy(True))
    return model, [integers(19, 10, 6)], [integers(20, 2)]


def nested() -> Made:
    x = keras.Input((6, 6, 2))
    inner = keras.Model(x, layers.BatchNormalization()(layers.Conv2D(3, 3, name="deep")(x)), name="inner")
    middle = keras.Sequential([inner, layers.ReLU(max_value=6.0), layers.BatchNormalization()], name="middle")
    inputs = keras.Input((6, 6, 2))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalMaxPooling2D()(middle(inputs))), name="outer")
    inner.layers[1].trainable = False
    model.compile(old.Adagrad(0.05), "msle")
    return model, [floats(21, 6, 6, 2)], [np.abs(floats(22, 1))]


def shared() -> Made:
    left, right = keras.Input((4,)), keras.Input((4,))
    base = layers.Dense(3, "selu", name="twins")
    apart = layers.Subtract()([base(left), base(right)])
    again = layers.Dot(1, normalize=True)([base(left), base(right)])
    model = keras.Model([left, right], layers.Dense(1, "sigmoid")(layers.concatenate([apart, again])))
    model.compile(keras.optimizers.Adadelta(0.5), "binary_crossentropy", metrics=["accuracy"])
    return model, [floats(23, 4), floats(24, 4)], [integers(25, 2, 1).astype("float32")]


def distributed() -> Made:
    model = keras.Sequential([keras.Input((3, 6, 2)), layers.TimeDistributed(layers.Conv1D(4, 3, padding="causal"))])
    for layer in (layers.TimeDistributed(layers.Flatten()), layers.Permute((2, 1)), layers.Reshape((-1, 3))):
        model.add(layer)
    cells = [layers.LSTMCell(3), layers.GRUCell(2, reset_after=False), layers.SimpleRNNCell(2)]
    model.add(layers.RNN(cells, return_sequences=False))
    model.compile(keras.optimizers.Adamax(0.02), "poisson")
    return model, [floats(26, 3, 6, 2)], [np.abs(floats(27, 2))]


def operations() -> Made:
    inputs = keras.Input((4, 3))
    x = layers.Dense(4)(inputs)
    x = tf.nn.relu(x) * 2.0 + 1.0
    x = tf.concat([x, tf.transpose(x[:, 1:3], [0, 2, 1])[:, :, :1] * tf.ones((1, 4, 4))], axis=-1)
    y = tf.expand_dims(tf.reduce_mean(x, axis=1), -1)
    y = (
        tf.squeeze(tf.reshape(y, [-1, 8, 1]), axis=-1)
        / tf.sqrt(tf.reduce_sum(tf.square(x), axis=[1, 2]) + 1e-3)[:, None]
    )
    z = tf.cast(tf.cast(y > 0, "int32"), "float32") - tf.maximum(y, 0.1)
    outputs = layers.Dense(1)(tf.matmul(tf.stack([y, z], axis=1), tf.ones((8, 2)))[:, 0] ** 2)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model, [floats(28, 4, 3)], [floats(29, 1)]


def mixed() -> Made:
    policy = keras.mixed_precision.Policy("mixed_float16")
    model = keras.Sequential([keras.Input((4, 4, 2)), layers.Conv2D(4, 2, activation="relu", dtype=policy)])
    model.add(layers.PReLU(shared_axes=[1, 2], dtype=policy))
    for layer in (layers.UpSampling2D(interpolation="bilinear"), layers.Cropping2D(1), layers.SpatialDropout2D(0.0)):
        model.add(layer)
    for layer in (
        layers.AveragePooling2D(),
        layers.Flatten(),
        layers.GaussianNoise(0.0),
        layers.Dense(2),
        layers.ELU(),
    ):
        model.add(layer)
    model.add(layers.Softmax(dtype="float32"))
    model.compile("sgd", keras.losses.CategoricalCrossentropy(), metrics=[keras.metrics.Precision()])
    return model, [floats(30, 4, 4, 2)], [np.eye(2, dtype="float32")[integers(31, 2)]]


def moving() -> Made:
    model = keras.Sequential([keras.Input((3, 6, 6, 1)), layers.ConvLSTM2D(2, 3, padding="same"), layers.Flatten()])
    model.add(layers.Dense(2, dtype="float64"))
    model.compile(keras.optimizers.Ftrl(0.05), "mse")
    return model, [floats(32, 3, 6, 6, 1)], [floats(33, 2)]


def pictures() -> Made:
    model = keras.Sequential([keras.Input((7, 9, 3)), layers.Resizing(8, 8, "bilinear"), layers.CenterCrop(6, 6)])
    for layer in (layers.RandomFlip("horizontal"), layers.RandomRotation(0.0), layers.RandomZoom(0.0)):
        model.add(layer)
    model.add(layers.Rescaling(1 / 127.5, offset=-1.0))
    model.add(layers.Normalization(axis=-1, mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0]))
    for layer in (layers.GlobalAveragePooling2D(), layers.Dense(2)):
        model.add(layer)
    model.compile("adam", "mse")
    return model, [np.abs(floats(36, 7, 9, 3)) * 100], [floats(37, 2)]


def table() -> Made:
    words, age, code = keras.Input((1,), dtype="string"), keras.Input((1,)), keras.Input((1,), dtype="int64")
    parts = [
        layers.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")(words),
        layers.CategoryEncoding(num_tokens=4, output_mode="one_hot")(layers.Discretization([0.0, 0.5, 1.0])(age)),
        layers.IntegerLookup(vocabulary=[10, 20, 30], output_mode="multi_hot")(code),
        layers.Normalization(mean=0.5, variance=4.0)(age),
    ]
    text = layers.TextVectorization(vocabulary=["big", "red", "dog"], output_sequence_length=4)(words)
    parts.append(layers.Flatten()(layers.Embedding(6, 2)(text)))
    model = keras.Model([words, age, code], layers.Dense(1)(layers.Concatenate()(parts)))
    model.compile("adam", "mse")
    texts = np.array([["red"], ["Big red dog!"], ["blue"], ["green"]])
    return model, [texts, floats(38, 1), np.array([[10], [20], [5], [30]])], [floats(39, 1)]


class Own(keras.Model):  # type: ignore[misc,unused-ignore]
    """A model of the user's own class: its architecture is in no file."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(4, "relu")
        self.blocks = [layers.Dense(4), layers.Dense(4)]
        self.last = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        x = self.first(inputs)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def subclassed() -> Made:
    model = Own()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model(floats(34, 3))
    return model, [floats(34, 3)], [floats(35, 1)]


MODELS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        *(mlp, two_two, cnn, separable, lstm, gru_before, gru_after, bidirectional, attention, nested, shared),
        *(distributed, operations, mixed, moving, pictures, table, subclassed),
    )
}


def numbered(kind: str, variables: Sequence[Any]) -> dict[str, Array]:
    return {f"{kind}/{n:03d}/{v.name.removesuffix(':0')}": v.numpy() for n, v in enumerate(variables)}


def tensors(values: Sequence[Array]) -> list[Any]:
    return [tf.constant(value) for value in values]


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def as_one(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def write(name: str) -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model, inputs, targets = MODELS[name]()
    x, y = as_one(tensors(inputs)), as_one(targets)
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    with tempfile.TemporaryDirectory() as folder:
        write_files(name, Path(folder), model, inputs, targets)
        pack(Path(folder), HERE / f"{name}.zip")


def write_files(name: str, folder: Path, model: Any, inputs: Sequence[Array], targets: Sequence[Array]) -> None:
    x, y = as_one(tensors(inputs)), as_one(targets)
    optimizer = model.optimizer.variables
    found = {f"inputs/{n}": array for n, array in enumerate(inputs)}
    found |= {f"targets/{n}": array for n, array in enumerate(targets)}
    found |= {f"outputs/{n}": array for n, array in enumerate(as_list(model.predict(x, verbose=0)))}
    found |= numbered("weight", model.weights)
    found |= numbered("optimizer", optimizer() if callable(optimizer) else optimizer)
    if name != "subclassed":
        model.save(folder / "model.h5")
        model.save(folder / "model.keras")
    model.save_weights(folder / "weights.h5")
    model.save_weights(folder / "checkpoint")
    model.save(folder / "saved_model", save_format="tf")
    model.train_on_batch(x, y)
    everything: dict[str, Any] = found | numbered("after", model.weights)
    np.savez_compressed(folder / "expected.npz", **everything)


def pack(folder: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.writestr(
                    zipfile.ZipInfo(str(file.relative_to(folder))), file.read_bytes(), zipfile.ZIP_DEFLATED
                )


if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        write(each)
        print(each, (HERE / f"{each}.zip").stat().st_size)
