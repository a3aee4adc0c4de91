"""Which stored tensor fills which variable: known layouts of names, structure, and what is ambiguous."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from anyrig.formats.contents import FileTensor
from anyrig.mapping.apply import arrays
from anyrig.mapping.propose import propose
from anyrig.mapping.result import Mapping
from anyrig.state.wanted import Wanted
from tests.unit.mapping_sides import DENSE, chain, layer, numbers, stored, tensor

CONV = {"kernel": (3, 3, 2, 5), "bias": (5,)}


def names(mapping: Mapping) -> dict[str, str]:
    """Return the stored name of each filled variable."""
    return {pair.wanted.name.removeprefix("model/"): pair.stored.name for pair in mapping.pairs}


def renamed(wanted: Sequence[Wanted], new: dict[str, str]) -> list[FileTensor]:
    """Return the variables as stored under other names, by layer path."""
    return [tensor(f"{new[item.layer]}/{item.leaf}", numbers(item.shape, seed)) for seed, item in enumerate(wanted)]


@pytest.mark.parametrize(
    ("spelling", "rule"),
    [
        ("model/head/{}", "name"),
        ("head/head/{}:0", "path"),  # groups of HDF5 files
        ("head/{}/.ATTRIBUTES/VARIABLE_VALUE", "path"),
        ("model/head/{}/.ATTRIBUTES/VARIABLE_VALUE", "path"),
        ("module/head/{}", "wrapper"),  # B092, B095, B200: what was put around the model
        ("_orig_mod/head/{}", "wrapper"),
        ("tower_0/head/{}", "wrapper"),
        ("model_1/head/{}", "wrapper"),
        ("backbone/inner/head/{}", "prefix"),
    ],
)
def test_B092_B202_decorations_and_wrappers(spelling: str, rule: str) -> None:
    wanted = layer("head")
    mapping = propose(stored({spelling.format(leaf): numbers(shape, 0) for leaf, shape in DENSE.items()}), wanted)
    assert mapping.complete
    assert {pair.rule for pair in mapping.pairs} == {rule}
    assert names(mapping) == {f"head/{leaf}": spelling.format(leaf) for leaf in DENSE}


def test_names_of_another_library() -> None:
    wanted = layer("norm", {"gamma": (5,), "beta": (5,), "moving_mean": (5,), "moving_variance": (5,)})
    have = ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    mapping = propose(stored({name: numbers((5,), seed) for seed, name in enumerate(have)}), wanted)
    assert mapping.complete
    assert list(names(mapping).values()) == have


def test_U08_position_of_keras_2_in_a_chain() -> None:
    wanted = chain("dense.0", "dense.1", "dense.2")
    have = [
        tensor(f"layer_with_weights-{n}/{leaf}", numbers(shape, n)) for n in (2, 0, 1) for leaf, shape in DENSE.items()
    ]
    mapping = propose(have, wanted)
    assert mapping.complete
    assert {pair.rule for pair in mapping.pairs} == {"order"}
    assert names(mapping)["dense.2/kernel"] == "layer_with_weights-2/kernel"


def test_variables_by_their_order_in_the_layer() -> None:
    wanted = chain("dense.0", "dense.1")
    have = [
        tensor(f"layers/dense{end}/vars/{i}", numbers(shape, i))
        for end in ("", "_1")
        for i, shape in enumerate(DENSE.values())
    ]
    mapping = propose(have, wanted)
    assert mapping.complete
    assert names(mapping)["dense.1/bias"] == "layers/dense_1/vars/1"


def test_U01_parallel_layers_of_one_shape_are_ambiguous() -> None:
    wanted = layer("dense.0", rank=0) + layer("dense.1", rank=1)
    have = renamed(wanted, {"dense.0": "layers/dense", "dense.1": "layers/dense_1"})
    mapping = propose(have, wanted)
    assert mapping.pairs == ()
    assert [(len(found.wanted), len(found.stored)) for found in mapping.ambiguous] == [(2, 2), (2, 2)]


def test_counters_alone_do_not_decide_and_can_be_accepted() -> None:
    wanted = chain("dense.0", "dense.1")
    have = renamed(wanted, {"dense.0": "dense_7", "dense.1": "dense_8"})
    assert propose(have, wanted).pairs == ()
    assert propose(have, wanted, ordered=True).complete  # the file lists layers along the graph
    accepted = propose(have, wanted, accept_order=True)
    assert names(accepted)["dense.1/kernel"] == "dense_8/kernel"
    assert {pair.confidence for pair in accepted.pairs} == {0.5}


def test_B004_B005_the_order_of_layers_in_the_file_wins_over_counters() -> None:
    wanted = chain("dense.0", "dense.1")
    have = renamed(wanted, {"dense.0": "dense_8", "dense.1": "dense_7"})
    assert names(propose(have, wanted, ordered=True))["dense.0/kernel"] == "dense_8/kernel"


def test_counters_of_layers_of_their_own_shapes() -> None:
    wanted = layer("conv2d.0", CONV, kind="Conv2D") + layer("dense.0")
    have = renamed(wanted, {"conv2d.0": "conv2d_53", "dense.0": "dense_7"})
    mapping = propose(have, wanted)
    assert mapping.complete
    assert names(mapping)["conv2d.0/bias"] == "conv2d_53/bias"


def test_U02_a_new_layer_does_not_get_the_values_of_another() -> None:
    named = layer("a") + layer("new") + layer("b")
    mapping = propose(renamed(layer("a") + layer("b"), {"a": "a", "b": "b"}), named)
    assert set(names(mapping)) == {"a/kernel", "a/bias", "b/kernel", "b/bias"}
    assert [item.layer for item in mapping.missing] == ["new", "new"]

    unnamed = chain("dense.0", "dense.1", "dense.2")
    mapping = propose(renamed(unnamed[:4], {"dense.0": "layers/dense", "dense.1": "layers/dense_1"}), unnamed)
    assert mapping.pairs == ()
    assert len(mapping.ambiguous) == 2


def test_U02_a_renamed_layer_is_listed_and_not_filled() -> None:
    mapping = propose(renamed(layer("a") + layer("old"), {"a": "a", "old": "old"}), layer("a") + layer("new"))
    assert set(names(mapping)) == {"a/kernel", "a/bias"}
    assert {found.stored[0].name for found in mapping.ambiguous} == {"old/kernel", "old/bias"}


def test_B022_a_list_without_names() -> None:
    wanted = layer("a", {"kernel": (4, 4)}) + layer("b", {"kernel": (4, 4)}) + layer("c", {"kernel": (4, 9)})
    mapping = propose(stored({f"arr_{n}": numbers(w.shape, n) for n, w in enumerate(wanted)}), wanted)
    assert names(mapping) == {"c/kernel": "arr_2"}  # the only one of its shape, and all shapes agree
    assert [[item.name for item in found.wanted] for found in mapping.ambiguous] == [
        ["model/a/kernel", "model/b/kernel"]
    ]


def test_B092_a_model_inside_its_only_layer() -> None:
    wanted = layer("conv2d.0", CONV, kind="Conv2D") + layer("head")
    mapping = propose(renamed(wanted, {"conv2d.0": "model_1/conv2d_3", "head": "model_1/head"}), wanted)
    assert mapping.complete


def test_B096_B011_nothing_shared_maps_nothing() -> None:
    mapping = propose(stored({"x/kernel": numbers((7, 7), 0)}), layer("head"))
    assert (mapping.pairs, len(mapping.missing), len(mapping.unused)) == ((), 2, 1)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("axis", [0, 1])
def test_B122_B123_partitions_of_any_count(count: int, axis: int) -> None:
    value = numbers((10, 10), 0)
    parts = np.array_split(value, count, axis)
    have = stored({f"w/part_{n}": part for n, part in enumerate(parts)} | {"b": numbers((3,), 1)})
    wanted = [Wanted(name=n, dtype="F32", shape=s, layer="", leaf=n) for n, s in (("w", (10, 10)), ("b", (3,)))]
    mapping = propose(have, wanted)
    assert mapping.complete
    np.testing.assert_array_equal(dict(arrays(mapping))["w"], value)


def test_B122_a_missing_part_is_not_joined() -> None:
    have = stored({"w/part_0": numbers((5, 4), 0), "w/part_2": numbers((5, 4), 1)})
    mapping = propose(have, [Wanted(name="w", dtype="F32", shape=(10, 4), layer="", leaf="w")])
    assert mapping.pairs == ()


def test_B106_two_towers_are_ambiguous() -> None:
    wanted = layer("norm", {"moving_mean": (4,)})
    mapping = propose(stored({f"tower_{n}/norm/moving_mean": numbers((4,), n) for n in (0, 1)}), wanted)
    assert mapping.pairs == ()
    assert len(mapping.ambiguous[0].stored) == 2


def test_B131_slots_of_tensorflow_1() -> None:
    kernel = Wanted(name="model/a/kernel", dtype="F32", shape=(4, 4), layer="a", leaf="kernel")
    slots = [
        Wanted(
            name=f"optimizer/main/a/kernel/{slot}",
            dtype="F32",
            shape=(4, 4),
            role="optimizer",
            of=kernel.name,
            slot=slot,
        )
        for slot in ("momentum", "velocity")
    ]
    values = {
        "a/kernel": numbers((4, 4), 0),
        "a/kernel/Adam": numbers((4, 4), 1),
        "a/kernel/Adam_1": numbers((4, 4), 2),
        "beta1_power": numbers((), 3),
    }
    mapping = propose(stored(values), [kernel, *slots])
    assert names(mapping) == {
        "a/kernel": "a/kernel",
        "optimizer/main/a/kernel/momentum": "a/kernel/Adam",
        "optimizer/main/a/kernel/velocity": "a/kernel/Adam_1",
    }
    assert [item.name for item in mapping.unused] == ["beta1_power"]


def test_a_kernel_of_another_library_is_turned() -> None:
    wanted = layer("fc", {"kernel": (3, 5), "bias": (5,)}) + layer("conv", CONV)
    values = {"fc.weight": numbers((5, 3), 0), "fc.bias": numbers((5,), 1), "conv.weight": numbers((5, 2, 3, 3), 2)}
    values["conv.bias"] = numbers((5,), 3)
    mapping = propose(stored(values), wanted)
    assert mapping.complete
    got = dict(arrays(mapping))
    np.testing.assert_array_equal(got["model/fc/kernel"], values["fc.weight"].T)
    np.testing.assert_array_equal(got["model/conv/kernel"], values["conv.weight"].transpose(2, 3, 1, 0))


def test_a_square_kernel_of_another_library_is_ambiguous() -> None:
    mapping = propose(stored({"fc.weight": numbers((4, 4), 0)}), layer("fc", {"kernel": (4, 4)}))
    assert mapping.pairs == ()
    assert "turned and as it is" in mapping.ambiguous[0].why


def test_B025_a_head_of_another_size_does_not_fit() -> None:
    wanted = layer("head", {"kernel": (8, 5), "bias": (5,)})
    mapping = propose(stored({"head/kernel": numbers((8, 10), 0), "head/bias": numbers((10,), 1)}), wanted)
    assert {found.cause for found in mapping.misfits} == {"head-size"}


def test_a_head_of_another_size_under_a_counter() -> None:
    wanted = layer("dense.0", {"kernel": (4, 8), "bias": (8,)}) + layer("dense.1", {"kernel": (8, 5), "bias": (5,)})
    old = layer("dense.0", {"kernel": (4, 8), "bias": (8,)}) + layer("dense.1", {"kernel": (8, 10), "bias": (10,)})
    mapping = propose(renamed(old, {"dense.0": "dense_4", "dense.1": "dense_5"}), wanted)
    assert names(mapping) == {"dense.0/kernel": "dense_4/kernel", "dense.0/bias": "dense_4/bias"}
    assert {found.cause for found in mapping.misfits} == {"head-size"}


def test_scalars_and_types_are_kept_in_mind() -> None:
    wanted = [Wanted(name="count", dtype="BF16", shape=(), layer="", leaf="count")]
    mapping = propose(stored({"count": np.ones((1,), np.float32)}), wanted)
    assert mapping.complete
    assert mapping.pairs[0].cast
    value = dict(arrays(mapping))["count"]
    assert (value.shape, str(value.dtype)) == ((), "bfloat16")
