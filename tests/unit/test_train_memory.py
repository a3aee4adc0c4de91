"""The memory estimate: its arithmetic, and what it finds in a model whose tensors can be counted by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from anyrig.cli.plan import describe_memory
from anyrig.train.memory import DeviceMemory, estimate, gradients_held, live_peak
from anyrig.train.rig import Rig
from anyrig.train.step.owner import OwnerEngine


@pytest.mark.parametrize(("block", "gradients"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 4)])
def test_a_block_is_summed_with_one_waiting_sum_of_each_size(block: int, gradients: int) -> None:
    assert gradients_held(block) == gradients


def test_a_result_is_held_from_its_operation_to_its_last_use() -> None:
    sizes = {"a": 10, "b": 4, "c": 7, "unused": 100}
    steps = [(["a"], []), (["b"], ["a"]), (["c"], ["b"]), ([], ["a", "c"])]
    assert live_peak(steps, sizes) == 21
    assert live_peak([*steps[:3], ([], ["c"])], sizes) == 14
    assert live_peak([(["unused"], []), *steps], sizes) == 100


def test_each_part_is_counted() -> None:
    rig, width, rows = Rig(1), 1000, 64
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(width, activation="sigmoid", use_bias=False)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(hidden))
    model.compile(keras.optimizers.Adam(), "mse")
    x, y = np.zeros((2 * rows, 8), "float32"), np.zeros((2 * rows, 1), "float32")
    engine = rig._known.engine(model, (x, y, None), 2)
    assert isinstance(engine, OwnerEngine)
    (found,) = estimate(engine, (x, y, None), 2 * rows)
    weights = 4 * (8 * width + width)
    assert found.parameters == weights
    assert 2 * weights < found.optimizer < 2 * weights + 100  # and its counters
    assert found.gradients == 2 * weights
    # Of the layer: its product while its sigmoid is made; then the sigmoid, its gradient, and that of the product.
    layer = 4 * rows * width
    assert 2 * layer <= found.activations < 3 * layer + 4 * rows * 100


def test_a_device_that_is_too_small_is_told_with_what_to_do() -> None:
    parts = {"parameters": 1024, "optimizer": 2048, "gradients": 1024, "activations": 4096}
    fits = DeviceMemory(device="/device:GPU:0", available=8192, **parts)
    assert describe_memory(fits) == (
        "about 8.0 KiB: parameters 1.0 KiB, optimizer 2.0 KiB, gradients 1.0 KiB, activations 4.0 KiB"
    )
    small = DeviceMemory(device="/device:GPU:0", available=8191, **parts)
    assert "; it has 8.0 KiB: take more virtual replicas" in describe_memory(small)
