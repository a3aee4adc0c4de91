"""Values of variables wherever they live: types, scalars, shared buffers, other devices, mirrored variables."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

from anyrig.state.values import assign, shape_of, to_array
from tests.unit.state_models import state_of


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "uint32", "bool", "float8_e4m3fn"],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_value_and_type_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    variable = keras.Variable(np.ones(shape), dtype=dtype, trainable=False)
    array = to_array(variable)
    assert isinstance(array, np.ndarray)
    assert (array.dtype.name, array.shape) == (dtype, shape) == (dtype, shape_of(variable))
    other = keras.Variable(np.zeros(shape), dtype=dtype, trainable=False)
    assign(other, array)
    assert to_array(other).tobytes() == array.tobytes()


def test_nan_and_negative_zero_keep_their_bits() -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000], np.uint32)
    variable = keras.Variable(bits.view(np.float32))
    other = keras.Variable(np.zeros(4, "float32"))
    assign(other, to_array(variable))
    assert to_array(other).view(np.uint32).tolist() == bits.tolist()


def test_array_is_no_copy_read_only_and_stays_as_it_was() -> None:
    variable = keras.Variable(np.ones(1 << 16, "float32"))
    first, second = to_array(variable), to_array(variable)
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 5
    variable.assign_add(np.ones(1 << 16, "float32"))
    variable.value.assign_add(np.ones(1 << 16, "float32"))
    assert first.min() == first.max() == 1
    assert to_array(variable)[0] == 3


def test_capture_holds_the_state_of_its_moment() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="d")])
    captured = state_of(model)
    held = to_array(model.layers[0].kernel)
    model.layers[0].kernel.assign(np.zeros((4, 4)))
    assert held.tobytes() == captured["model/d/kernel"][2]
    assert state_of(model) != captured


def test_assign_copies() -> None:
    variable, array = keras.Variable(np.zeros(1 << 16, "float32")), np.ones(1 << 16, "float32")
    assign(variable, array)
    array[:] = 7
    assert to_array(variable).max() == 1


SEVERAL_DEVICES = """
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    import keras, numpy as np
    from tests.unit.state_models import Source, contents, layers
    from anyrig.state.capture import capture
    from anyrig.state.restore import restore
    from anyrig.state.values import assign, to_array

    def build():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="d"), layers.BatchNormalization(name="bn")])
        model.compile(keras.optimizers.Adam(use_ema=True), "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
        return model

    with tf.device("CPU:1"):
        placed = keras.Variable(np.arange(3.0))
    assert "CPU:1" in placed.value.device and to_array(placed).tolist() == [0, 1, 2]
    assign(placed, np.ones(3, "float32"))
    assert "CPU:1" in placed.value.device and to_array(placed).tolist() == [1, 1, 1]

    plain = build()
    plain.optimizer.apply([keras.ops.ones(v.shape) for v in plain.trainable_variables], plain.trainable_variables)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:2"])
    with strategy.scope():
        mirrored = build()
    restore(Source(capture(plain)), mirrored)
    assert contents(capture(mirrored)) == contents(capture(plain))
    assert int(to_array(mirrored.optimizer.iterations)) == 1
    for variable in mirrored.variables + mirrored.optimizer.variables:
        copies = [copy.numpy() for copy in variable.value.values]
        assert len(copies) == 2 and np.array_equal(*copies), variable.path
    again = build()
    restore(Source(capture(mirrored)), again)
    assert contents(capture(again)) == contents(capture(plain))
    print("done")
"""


def test_other_devices_and_mirrored_variables_u10() -> None:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    code = [sys.executable, "-c", textwrap.dedent(SEVERAL_DEVICES)]
    done = subprocess.run(code, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr[-2000:]
