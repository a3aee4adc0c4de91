"""What an engine keeps: one trace for all lengths of a padded dataset, and no model alive that nobody else holds."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import anyrig


def texts() -> tf.data.Dataset:
    rows = [([1, 2, 3], 0.0), ([4, 5], 1.0), ([6], 0.0), ([7, 8, 9, 1, 2], 1.0), ([3], 1.0), ([2, 2, 2, 2], 0.0)]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.float32))
    )
    return dataset.padded_batch(2).apply(tf.data.experimental.assert_cardinality(3))


def build() -> keras.Model:
    words = keras.Input((None,), dtype="int32")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4, mask_zero=True)(words))
    model = keras.Model(words, layers.Dense(1)(hidden))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_batches_padded_to_other_lengths_share_one_trace_and_equal_keras() -> None:
    rig = anyrig.Rig()
    ours, theirs = rig.build(build), rig.build(build)
    batch = anyrig.Batch(virtual_replicas=1)
    rig.fit(ours, texts(), batch=batch, shuffle=False, verbose=0)
    theirs.fit(texts(), shuffle=False, verbose=0)
    engine: Any = rig._known._engines_of(ours)[False][1]
    assert len(engine._functions) == 1
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_model_that_nobody_holds_is_let_go() -> None:
    rig = anyrig.Rig()
    model = rig.build(lambda: keras.Sequential([keras.Input((3,)), layers.Dense(1)]))
    model.compile("sgd", "mse")
    rig.fit(model, np.ones((4, 3), "float32"), np.ones((4, 1), "float32"), verbose=0)
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None
