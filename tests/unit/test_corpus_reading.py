"""What Keras 3 and TensorFlow wrote is read without them: byte for byte, whichever of a model's files is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from anyrig.diagnose.verify import verify
from anyrig.formats.contents import Contents, FileTensor
from anyrig.formats.sniff import read_any
from tests.corpus import keras3
from tests.corpus import tensorflow_checkpoints as checkpoints


def plain(tensor: FileTensor) -> np.ndarray:
    array = tensor.array()
    return array.astype(np.float32) if tensor.dtype == "BF16" else array


def all_names(contents: Contents) -> dict[str, FileTensor]:
    return {name: tensor for tensor in contents.tensors for name in (tensor.name, *tensor.aliases)}


@pytest.mark.parametrize("name", checkpoints.NAMES)
def test_B132_checkpoints_of_every_kind_are_read_byte_for_byte(tmp_path: Path, name: str) -> None:
    contents = read_any(checkpoints.unpack(name, tmp_path))
    found, wanted = all_names(contents), checkpoints.expected(name)
    assert len(contents.tensors) == len(wanted)
    for key, array in wanted.items():
        if isinstance(array, list):
            assert found[key].array().reshape(-1).tolist() == array
        else:
            assert plain(found[key]).shape == array.shape
            assert plain(found[key]).tobytes() == array.tobytes()
    assert contents.format == ("tensorflow-checkpoint" if "objects" in name else "tensorflow-variables")
    assert verify(tmp_path / name / "run").sound


@pytest.mark.parametrize("name", checkpoints.NAMES)
def test_B128_every_file_of_a_checkpoint_opens_the_same(tmp_path: Path, name: str) -> None:
    folder = checkpoints.unpack(name, tmp_path)
    files = sorted(folder.iterdir())
    prefix = folder / ("ckpt-1" if "objects" in name else "model.ckpt-7")
    whole = dataclasses.replace(read_any(folder), notes=())
    for path in (*files, prefix):
        if path.suffix == ".meta" and name == "one_file":
            continue
        assert dataclasses.replace(read_any(path), notes=()) == whole, path


def test_B131_slots_and_averages_of_towers_are_told_from_weights(tmp_path: Path) -> None:
    found = all_names(read_any(checkpoints.unpack("towers", tmp_path)))
    slot = found["tower_0/conv1/weights/Momentum"]
    assert (slot.role, slot.of, slot.slot) == ("optimizer", "tower_0/conv1/weights", "Momentum")
    assert found["tower_1/conv1/biases/Adam_1"].of == "tower_1/conv1/biases"
    assert found["tower_1/conv1/weights/ExponentialMovingAverage"].slot == "ExponentialMovingAverage"
    assert (found["beta1_power"].role, found["global_step"].role) == ("optimizer", "other")
    assert [name for name, tensor in found.items() if tensor.role == "weight"] == [
        f"tower_{tower}/conv1/{kind}" for tower in range(2) for kind in ("biases", "weights")
    ]


def test_B123_partitioned_variables_and_their_slots_are_whole(tmp_path: Path) -> None:
    found = {tensor.name: tensor for tensor in read_any(checkpoints.unpack("partitioned", tmp_path)).tensors}
    assert {name: tensor.shape for name, tensor in found.items() if "embedding" in name} == {
        f"by{axis}/embedding{slot}": (7, 5) for axis in range(2) for slot in ("", "/Adagrad")
    }
    assert found["by1/embedding/Adagrad"].of == "by1/embedding"


@pytest.mark.parametrize("name", keras3.NAMES)
def test_all_formats_of_a_model_of_keras_3_hold_the_same_weights_and_optimizer(tmp_path: Path, name: str) -> None:
    folder = keras3.unpack(name, tmp_path)
    for file in keras3.FILES:
        contents = read_any(folder / file)
        tensors = [tensor for tensor in contents.tensors if tensor.dtype != "STRING"]
        held = {plain(tensor).tobytes() for tensor in tensors}
        wanted = keras3.expected(name, "weight")
        if file != "saved_model":  # it has no optimizer
            wanted |= keras3.expected(name, "optimizer")
            optimizer = sum(tensor.role == "optimizer" for tensor in tensors)
            assert optimizer == len(keras3.expected(name, "optimizer")), file
        missing = [key for key, array in wanted.items() if array.tobytes() not in held]
        if (name, file) == ("mixed", "model.h5"):  # which writes bfloat16 without saying so
            assert {tensor.dtype for tensor in tensors} >= {"V2"}
            continue
        assert not missing, file
        assert (contents.config is not None) == (file in ("model.keras", "unzipped", "model.h5"))
        assert verify(folder / file).sound


def test_the_slots_of_keras_3_are_those_of_their_weights_in_an_object_checkpoint(tmp_path: Path) -> None:
    found = all_names(read_any(keras3.unpack("lstm", tmp_path) / "checkpoint"))
    slots = [tensor for tensor in found.values() if tensor.slot is not None]
    assert {tensor.slot for tensor in slots} == {"momentum", "velocity", "velocity_hat"}
    for tensor in slots:
        assert tensor.of is not None
        own = found[tensor.of].aliases[-1].replace("/", "_")
        assert tensor.aliases[-1].endswith(f"{own}_{tensor.slot}")
        assert tensor.shape == found[tensor.of].shape


def test_vocabularies_are_assets(tmp_path: Path) -> None:
    contents = read_any(keras3.unpack("words", tmp_path) / "model.keras")
    (vocabulary, *_) = contents.assets.values()
    assert b"sat" in vocabulary().splitlines()


def test_nothing_here_needed_tensorflow_or_keras(tmp_path: Path) -> None:
    from anyrig.testing.processes import run_python

    folder = keras3.unpack("mlp", tmp_path)
    code = (
        "import sys; from anyrig.diagnose.verify import verify; [verify(path).require_sound() for path in sys.argv[1:]]"
    )
    code += "; assert not {'tensorflow', 'keras', 'google.protobuf'} & sys.modules.keys()"
    run_python(code, *(folder / file for file in keras3.FILES))
