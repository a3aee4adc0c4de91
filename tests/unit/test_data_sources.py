"""Arrays and datasets as sources: rows together, order from (seed, epoch), entered at any batch; bad data named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyrig.data.arrays import ArraySource, is_array_like
from anyrig.data.dataset import DatasetSource
from anyrig.data.stream import Stream
from anyrig.errors import UsageError

X = np.arange(11, dtype="float64").reshape(11, 1)


def values(batches: Any) -> list[list[float]]:
    return [np.asarray(batch[0]).ravel().tolist() for batch in batches]


def test_rows_of_all_arrays_stay_together() -> None:
    source = ArraySource({"a": X, "b": [X * 2]}, X * 3, X[:, 0] * 4, global_size=4, seed=1)
    for x, y, weight in source.batches(0):
        a = x["a"]
        assert np.array_equal(x["b"][0], a * 2)
        assert np.array_equal(y, a * 3)
        assert np.array_equal(weight, a[:, 0] * 4)
        assert a.dtype == np.float32, "float64 becomes floatx, as in Keras"


@pytest.mark.parametrize("start", range(4))
def test_U04_arrays_are_entered_at_any_batch(start: int) -> None:
    source = ArraySource(X, global_size=4, seed=1)
    assert values(source.batches(2, start)) == values(source.batches(2))[start:]
    assert source.batches_per_epoch() == 3


def test_the_fingerprint_sees_a_changed_row() -> None:
    changed = X.copy()
    changed[5] += 1
    prints = [ArraySource(x, global_size=4).fingerprint() for x in (X, X.copy(), changed, X[:10], X.astype("float32"))]
    assert prints[0] == prints[1]
    assert all(prints[0] != other for other in prints[2:])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, X[:5], "x: 11, y: 5"),
        (np.float32(1), None, "single number"),
        (X[:0], X[:0], "no rows"),
    ],
)
def test_unusable_arrays_are_refused(x: Any, y: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ArraySource(x, y, global_size=4)


def test_what_counts_as_arrays() -> None:
    assert all(map(is_array_like, (X, {"a": [X, tf.constant(X)]})))
    assert not any(map(is_array_like, ("text", None, iter([X]))))


def shuffled(**kwargs: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(11).shuffle(11, **kwargs).map(lambda x: (x, x)).batch(4)


def straight(epochs: int) -> list[list[list[float]]]:
    source = DatasetSource(shuffled(seed=5), batch=None, batched=True)
    return [values(source.batches(epoch)) for epoch in range(epochs)]


@pytest.mark.parametrize(("epoch", "start"), [(0, 0), (0, 2), (1, 1), (3, 0)])
def test_U04_a_seeded_dataset_is_entered_at_any_batch_of_any_epoch(epoch: int, start: int) -> None:
    source = DatasetSource(shuffled(seed=5), batch=None, batched=True)
    assert values(source.batches(epoch, start)) == straight(epoch + 1)[epoch][start:]


def test_each_epoch_of_a_dataset_has_its_own_order() -> None:
    assert len({str(epoch) for epoch in straight(4)}) == 4


def test_a_shuffle_without_seed_cannot_be_carried_on() -> None:
    tf.random.set_seed(None)
    with pytest.raises(UsageError, match="without a seed"):
        DatasetSource(shuffled(), batch=None, batched=True).refuse_random_order(0)
    DatasetSource(shuffled(seed=0), batch=None, batched=True).refuse_random_order(0)
    DatasetSource(tf.data.Dataset.range(3).batch(2), batch=None, batched=True).refuse_random_order(0)


def test_an_order_that_is_gone_is_refused() -> None:
    source = DatasetSource(shuffled(seed=5), batch=None, batched=True)
    assert [values(source.batches(epoch)) for epoch in range(3)] == straight(3)
    with pytest.raises(UsageError, match="iterated 3 times"):
        source.refuse_random_order(1)


@pytest.mark.parametrize("size", [3, 5])
def test_a_batch_size_that_disagrees_with_the_dataset_is_refused(size: int) -> None:
    source = DatasetSource(tf.data.Dataset.range(11).batch(4), batch=size, batched=True)
    with pytest.raises(UsageError, match="batches of 4 rows"):
        list(source.batches(0))


@pytest.mark.parametrize("shape", ["repeat", "concatenate"])
def test_U04_inner_shuffles_are_where_they_would_be(shape: str) -> None:
    def make() -> DatasetSource:
        inner = tf.data.Dataset.range(7).shuffle(7, seed=5)
        whole = inner.repeat(2) if shape == "repeat" else inner.concatenate(tf.data.Dataset.range(5).shuffle(5, seed=6))
        return DatasetSource(whole.batch(4), batch=None, batched=True)

    straight, resumed = make(), make()
    epochs = [values(straight.batches(epoch)) for epoch in range(3)]
    assert values(resumed.batches(2, 1)) == epochs[2][1:]


def test_elements_that_are_not_rows_of_one_shape_are_refused() -> None:
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2)
    with pytest.raises(UsageError, match="RaggedTensorSpec"):
        DatasetSource(ragged, batch=None, batched=True).sample()


def test_an_unbatched_dataset_is_batched() -> None:
    source = DatasetSource(tf.data.Dataset.range(11), batch=4, batched=False)
    assert [len(batch) for batch in values(source.batches(0))] == [4, 4, 3]
    assert source.batches_per_epoch() == 3


def test_a_dataset_without_end_is_refused() -> None:
    source = DatasetSource(tf.data.Dataset.range(3).repeat().batch(2), batch=None, batched=True)
    with pytest.raises(UsageError, match="never ends"):
        Stream(source)
    assert Stream(source, 5).length() == 5
