"""The parts of the step that are plain arithmetic: the tree, the keys, the batch rules, the row shares."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyrig.errors import UsageError
from anyrig.store.retain import Keep
from anyrig.train.batch import Batch
from anyrig.train.checkpoint import CheckpointSettings
from anyrig.train.rig import _one_batch_rule
from anyrig.train.step.seeds import keys
from anyrig.train.step.tree import reduce_tree


def joined(left: str, right: str, _: range) -> str:
    return f"({left}{right})"


@pytest.mark.parametrize(
    ("parts", "tree"),
    [
        ("a", "a"),
        ("ab", "(ab)"),
        ("abc", "((ab)c)"),
        ("abcdef", "(((ab)(cd))(ef))"),
        ("abcdefgh", "(((ab)(cd))((ef)(gh)))"),
    ],
)
def test_the_tree_has_one_shape(parts: str, tree: str) -> None:
    assert reduce_tree(list(parts), joined) == tree


@given(st.integers(1, 40))
def test_each_join_is_told_the_parts_below_it(count: int) -> None:
    def check(left: list[int], right: list[int], span: range) -> list[int]:
        assert left + right == list(span)
        return left + right

    assert reduce_tree([[i] for i in range(count)], check) == list(range(count))


GENERATORS = [("dropout.0/seed_generator", 5), ("dropout.1/seed_generator", 5), ("/global", 0)]


def test_B113_keys_differ_between_generators_steps_replicas_and_runs() -> None:
    states = [tuple(s) for run in (0, 1) for step in range(-2, 20) for v in keys(run, GENERATORS, step, 8) for s in v]
    assert len(set(states)) == len(states)


def test_keys_do_not_depend_on_how_many_replicas_there_are() -> None:
    assert np.array_equal(keys(7, GENERATORS, 3, 8)[:4], keys(7, GENERATORS, 3, 4))


def test_keys_are_pinned_for_ever() -> None:
    assert keys(0, GENERATORS[:1], 0, 1).tolist() == [[[854130105, 818106197]]]


def test_keys_survive_the_reduction_that_keras_makes() -> None:
    states = keys(2**70, GENERATORS, 10**12, 4)
    assert states.dtype == np.int64
    assert states.min() >= 0
    assert states.max() < 2**31


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize("name", ["global_size", "virtual_replicas", "per_device"])
def test_batch_rules_below_one_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"batch.{name}: expected a positive integer"):
        Batch(**{name: value})  # type: ignore[arg-type]


def test_two_batch_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="both set"):
        Batch(global_size=8, per_device=2)


@pytest.mark.parametrize(("every", "keep"), [("often", 3), ("0 steps", 3), ("1 epoch", 0)])
def test_checkpoint_settings_that_mean_nothing_are_refused(every: str, keep: int) -> None:
    with pytest.raises(UsageError, match="checkpoint: "):
        CheckpointSettings("x", every=every, keep_last=keep)


@pytest.mark.parametrize(
    ("settings", "found", "example"),
    [
        ({"keep_best": 1}, "keep_best=1 needs `monitor`", 'monitor="val_loss", keep_best=1'),
        ({"mode": "smallest"}, "mode: expected auto, min, max, found 'smallest'", 'mode="max"'),
        ({"max_total_size": "1 banana"}, "max_total_size: expected .* found '1 banana'", "max_total_size="),
        ({"min_free": 0}, "min_free: expected .* found 0", "min_free="),
        ({"max_shard_size": True}, "max_shard_size: expected .* found True", "max_shard_size="),
        ({"split": "layers"}, "split: expected size or layer, found 'layers'", "split="),
        ({"keep_best": 1, "monitor": "val_los"}, "mode: .* give mode 'min' or 'max'", 'monitor="val_los", mode="max"'),
        ({"keep_last": 0}, "keep_last=0: give a whole number", "keep_last=3"),
    ],
)
def test_retention_that_means_nothing_is_refused(settings: dict[str, Any], found: str, example: str) -> None:
    with pytest.raises(UsageError, match=f"checkpoint: {found}") as caught:
        CheckpointSettings("x", **settings)
    assert example in caught.value.hint


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        *[(name, "min") for name in ("loss", "val_loss", "val_head_loss", "mean_squared_error_1", "val_mae")],
        *[(name, "max") for name in ("acc", "val_sparse_categorical_accuracy", "auc_2", "f1_score", "val_head_recall")],
    ],
)
def test_B087_which_way_is_better_is_told_by_the_names_of_keras(monitor: str, mode: Literal["min", "max"]) -> None:
    assert CheckpointSettings("x", monitor=monitor).keep == Keep(best=1, monitor=monitor, mode=mode)
    assert CheckpointSettings("x", keep_best=1, monitor=monitor, mode="max").keep.mode == "max"


@pytest.mark.parametrize(
    ("text", "size"),
    [("20 GB", 20 * 10**9), ("1.5 KiB", 1536), ("512mib", 2**29), (7, 7), ("7", 7), ("2T", 2 * 10**12), ("9 B", 9)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert CheckpointSettings("x", max_total_size=text).keep.max_total_size == size


def test_a_batch_size_beside_virtual_replicas_is_the_global_size() -> None:
    rule = _one_batch_rule(Batch(virtual_replicas=4), 13)
    assert rule == Batch(global_size=13, virtual_replicas=4)
    with pytest.raises(UsageError, match=r"batch_size 13 .* 12 disagree"):
        _one_batch_rule(Batch(global_size=12), 13)
    with pytest.raises(UsageError, match="per_device 8 and global_size 13 are both set"):
        _one_batch_rule(Batch(per_device=8), 13)
