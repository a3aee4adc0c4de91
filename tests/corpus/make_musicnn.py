"""Writes tests/corpus/musicnn.npz: what TensorFlow computes with musicnn's own graphs, on `inputs`, tenths of a unit.

Run by a Python that has TensorFlow and `platformdirs`, in the project's folder:

    python -m tests.corpus.make_musicnn

The graphs are those beside the checkpoints, as the authors trained them. Their gradients, which TensorFlow of today
does not read, are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tests.corpus.artefacts import unpacked

MODELS = ("MSD_musicnn", "MSD_vgg", "MTT_musicnn", "MTT_vgg")
OUTPUT, INPUT = "model/Sigmoid", "model/Placeholder:0"


def outputs(folder: Path, inputs: Any) -> Any:
    described = meta_graph_pb2.MetaGraphDef()
    described.ParseFromString((folder / ".meta").read_bytes())
    v1 = tf.compat.v1
    stored = v1.train.NewCheckpointReader(str(folder) + "/")
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(v1.graph_util.extract_sub_graph(described.graph_def, [OUTPUT]), name="")
        operations = session.graph.get_operations()
        values = {f"{op.name}/read:0": stored.get_tensor(op.name) for op in operations if op.type == "VariableV2"}
        flags = [f"{op.name}:0" for op in operations if op.type == "Placeholder" and op.outputs[0].dtype == tf.bool]
        return session.run(f"{OUTPUT}:0", {INPUT: inputs, **values, **dict.fromkeys(flags, False)})


if __name__ == "__main__":
    tenths = np.random.default_rng(4).integers(0, 50, size=(2, 187, 96)).astype("uint8")
    found = {name: outputs(unpacked("musicnn") / "musicnn" / name, tenths / 10) for name in MODELS}
    np.savez_compressed(Path(__file__).parent / "musicnn.npz", inputs=tenths, **found)
