"""Writes tests/corpus/others: one model of Keras 3 as ONNX, TFLite and as Orbax's folder, with its arrays.

    python tests/corpus/make_others.py

Needs the packages onnx and orbax-checkpoint beside TensorFlow. `all_types.onnx` has an initialiser of each type, as
raw bytes and as numbers one by one; `outside.onnx` keeps its data in a file beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import onnx
import tensorflow as tf
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent / "others"
ARRAYS = {
    "f32": np.array([[1.5, -2.0], [np.inf, 0.25]], np.float32),
    "f64": np.array([1e300, -1.0]),
    "f16": np.array([1.5, 65504.0], np.float16),
    "i8": np.array([-128, 127], np.int8),
    "u8": np.array([0, 255], np.uint8),
    "i16": np.array([-(2**15), 2**15 - 1], np.int16),
    "u16": np.array([0, 2**16 - 1], np.uint16),
    "i32": np.array([-(2**31), 2**31 - 1], np.int32),
    "i64": np.array([-(2**63), 2**63 - 1], np.int64),
    "u32": np.array([0, 2**32 - 1], np.uint32),
    "u64": np.array([0, 2**64 - 1], np.uint64),
    "bool": np.array([True, False, True]),
    "c64": np.array([1 + 2j, -3j], np.complex64),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
}


def all_types() -> Any:
    raw = [numpy_helper.from_array(array, f"raw/{name}") for name, array in ARRAYS.items()]
    plain = [
        helper.make_tensor(f"plain/{name}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, a.reshape(-1).tolist())
        for name, a in ARRAYS.items()
    ]
    text = helper.make_tensor("text", TensorProto.STRING, (2,), [b"one", "ü".encode()])
    half = helper.make_tensor("plain/bf16", TensorProto.BFLOAT16, (2,), [1.5, -2.0])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y], [*raw, *plain, text, half])
    return helper.make_model(graph, producer_name="a writer", producer_version="1.2")


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    onnx.save(all_types(), HERE / "all_types.onnx")
    large = {"outside": np.arange(600, dtype=np.float32).reshape(20, 30)}
    tensors = [numpy_helper.from_array(array, name) for name, array in large.items()]
    model = helper.make_model(helper.make_graph([], "g", [], [], tensors))
    onnx.save(model, HERE / "outside.onnx", save_as_external_data=True, location="outside.data", size_threshold=0)

    keras.utils.set_random_seed(3)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2, name="last")])
    net.compile(keras.optimizers.Adam(0.01), "mse")
    x, y = np.ones((4, 4), np.float32), np.ones((4, 2), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        callback = keras.callbacks.OrbaxCheckpoint(folder, max_to_keep=None, save_on_background=False)
        net.fit(x, y, epochs=2, verbose=0, callbacks=[callback])
        shutil.copytree(folder, HERE / "orbax")
    converter = tf.lite.TFLiteConverter.from_keras_model(net)
    (HERE / "float.tflite").write_bytes(converter.convert())
    larger = keras.Sequential([keras.Input((40,)), keras.layers.Dense(30)])  # smaller weights are not quantised
    converter = tf.lite.TFLiteConverter.from_keras_model(larger)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    (HERE / "quantised.tflite").write_bytes(converter.convert())
    found: dict[str, Any] = {f"onnx/{name}": array for name, array in ARRAYS.items()} | large
    found |= {f"weight/{v.path}": v.numpy() for v in net.weights}
    found |= {f"optimizer/{v.path}": v.numpy() for v in net.optimizer.variables}
    found["quantised"] = larger.weights[0].numpy()
    np.savez_compressed(HERE / "expected.npz", **found)


if __name__ == "__main__":
    main()
