"""Writes tests/corpus/tensorflow: checkpoints of TensorFlow of every kind, with what they hold.

    python tests/corpus/make_tensorflow.py [NAME...]

NAME.zip has the files of one checkpoint in a folder, and `expected.npz` with its arrays by the names of the variables
(of objects: by their paths). bfloat16 stands there as float32, text as bytes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import tensorflow as tf

from tests.corpus.make_keras3 import pack

HERE = Path(__file__).parent / "tensorflow"
old = tf.compat.v1
Found = dict[str, Any]


def values(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def saved(folder: Path, build: Callable[[], object], name: str = "model.ckpt", **saver: Any) -> Found:
    """Build variables in a graph of TensorFlow 1, save them, and return them; partitioned ones whole."""
    with tf.Graph().as_default(), old.Session(config=old.ConfigProto(device_count={"CPU": 2})) as session:
        build()
        for each in old.global_variables():  # in order: averages begin with the values of their variables
            session.run(each.initializer)
        old.train.Saver(**saver).save(session, str(folder / name), global_step=7)
        parts: dict[str, list[Any]] = {}
        for variable in old.global_variables():
            name = variable.op.name
            if (info := variable._get_save_slice_info()) is not None:
                name = info.full_name
            parts.setdefault(name, []).append((info, session.run(variable)))
    return {name: whole(found) for name, found in parts.items()}


def whole(parts: list[Any]) -> Any:
    if parts[0][0] is None:
        return parts[0][1]
    result = np.empty(parts[0][0].full_shape, parts[0][1].dtype)
    for info, part in parts:
        place = zip(info.var_offset, info.var_shape, strict=True)
        result[tuple(slice(start, start + size) for start, size in place)] = part
    return result


def variable(name: str, seed: int, *shape: int, **options: Any) -> Any:
    return old.get_variable(name, initializer=tf.constant(values(seed, *shape)), use_resource=False, **options)


def towers() -> None:
    """What training on several devices left in names, and what optimizers and averages added."""
    weights = []
    for tower in range(2):
        with old.variable_scope(f"tower_{tower}"):
            weights.append(variable("conv1/weights", tower, 3, 3, 2, 4))
            weights.append(variable("conv1/biases", 10 + tower, 4))
    step = old.train.get_or_create_global_step()
    loss = tf.add_n([tf.reduce_sum(w**2) for w in weights])
    train = [old.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step, weights[:2])]
    train += [old.train.AdamOptimizer(0.1).minimize(loss, var_list=weights[2:])]
    tf.train.ExponentialMovingAverage(0.9).apply(weights)
    assert train


def partitioned() -> None:
    for axis, parts in ((0, 3), (1, 2)):
        split = old.fixed_size_partitioner(parts, axis=axis)
        with old.variable_scope(f"by{axis}", partitioner=split, use_resource=False):
            rows = old.get_variable("embedding", (7, 5), initializer=old.random_normal_initializer(seed=axis))
        loss = tf.reduce_sum(tf.convert_to_tensor(rows) ** 2)
        old.train.AdagradOptimizer(0.1).minimize(loss, var_list=list(rows))
    variable("plain", 3, 4)


def devices() -> None:
    for device in range(2):
        with tf.device(f"/cpu:{device}"):
            variable(f"on{device}", device, 5, 2)


def types() -> None:
    for name in ("float16", "float64", "int8", "uint8", "int64", "uint16", "bool", "complex64", "bfloat16"):
        old.get_variable(name, initializer=tf.cast(tf.constant([0.0, 1.5, 3.0]), name), use_resource=True)
    old.get_variable("scalar", initializer=tf.constant(4.25), use_resource=True)
    old.get_variable("empty", initializer=tf.zeros((0, 3)), use_resource=True)
    old.get_variable("text", initializer=tf.constant([["a", ""], ["ü" * 100, "x\0y"]]), use_resource=False)


def one_file(folder: Path) -> Found:
    """The first Saver format: one file, with names alone."""
    return saved(folder, towers, write_version=old.train.SaverDef.V1)


class Block(tf.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.kernel = tf.Variable(values(seed, 3, 4), name="any/name")
        self.of = {"a": tf.Variable(values(seed + 1, 2)), "b/c": tf.Variable(seed, dtype=tf.int64)}


def objects(folder: Path, **options: Any) -> Found:
    root = tf.train.Checkpoint(
        blocks=[Block(1), Block(5)], text=tf.Variable(["one", "ü", ""]), half=tf.Variable(1.5, dtype=tf.bfloat16)
    )
    root.again = root.blocks[1]
    root.save(str(folder / "ckpt"), options=tf.train.CheckpointOptions(**options))
    found: Found = {"text": root.text, "half": root.half, "save_counter": root.save_counter}
    for number, block in enumerate(root.blocks):
        found |= {f"blocks/{number}/kernel": block.kernel, f"blocks/{number}/of/a": block.of["a"]}
        found[f"blocks/{number}/of/b.Sc"] = block.of["b/c"]
    return {name: each.numpy() for name, each in found.items()}


def sharded_objects(folder: Path) -> Found:
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=64)
    return objects(folder, experimental_sharding_callback=policy)


CASES: dict[str, Callable[[Path], Found]] = {
    "towers": lambda folder: saved(folder, towers),
    "partitioned": lambda folder: saved(folder, partitioned),
    "devices": lambda folder: saved(folder, devices, sharded=True),
    "types": lambda folder: saved(folder, types),
    "one_file": one_file,
    "objects": objects,
    "sharded_objects": sharded_objects,
}


def storable(value: Any) -> np.ndarray[Any, Any]:
    """Return what numpy's files can hold: of bfloat16 float32, of texts their bytes, each behind its length."""
    array = np.asarray(value)
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return array.astype("float32")
    if array.dtype != object:
        return array
    texts = [text.encode() if isinstance(text, str) else text for text in array.reshape(-1).tolist()]
    return np.frombuffer(b"".join(len(text).to_bytes(4, "big") + text for text in texts), "S1")


def write(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run").mkdir()
        found = {key: storable(value) for key, value in CASES[name](Path(folder) / "run").items()}
        arrays: dict[str, Any] = found
        np.savez_compressed(Path(folder) / "expected.npz", **arrays)
        pack(Path(folder), HERE / f"{name}.zip")


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        write(each)
        print(each, (HERE / f"{each}.zip").stat().st_size)
