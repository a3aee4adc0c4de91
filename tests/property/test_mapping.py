"""Whatever a file calls the variables of a model, and in whatever order: they are mapped rightly or not at all.

Models are random layers of few kinds and shapes, so that many look alike. Each tensor's value is its identity.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anyrig.formats.contents import FileTensor
from anyrig.mapping.apply import arrays
from anyrig.mapping.propose import propose
from anyrig.state.wanted import Wanted
from tests.unit.mapping_sides import layer, tensor

KINDS: dict[str, list[dict[str, tuple[int, ...]]]] = {
    "Dense": [{"kernel": (2, 2), "bias": (2,)}, {"kernel": (2, 3), "bias": (3,)}, {"kernel": (2, 2)}],
    "Conv2D": [{"kernel": (3, 3, 2, 2), "bias": (2,)}, {"kernel": (1, 1, 2, 2)}],
    "BatchNormalization": [{"gamma": (2,), "beta": (2,), "moving_mean": (2,), "moving_variance": (2,)}],
    "Embedding": [{"embeddings": (2, 2)}],
}
SNAKE = {kind: kind.lower().replace("normalization", "_normalization") for kind in KINDS}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of the model; `number` counts its kind in the order of the graph."""

    kind: str
    variables: dict[str, tuple[int, ...]]
    path: str
    number: int
    rank: int


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Layer], bool]:
    """Draw layers, each under a chosen name or counted, and whether each comes certainly before the next."""
    counts: Counter[str] = Counter()
    unnamed: Counter[str] = Counter()
    layers: list[Layer] = []
    for rank in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        chosen = draw(st.booleans())
        path = f"name{rank}" if chosen else f"{SNAKE[kind]}.{unnamed[kind]}"
        layers.append(Layer(kind, draw(st.sampled_from(KINDS[kind])), path, counts[kind], rank))
        counts[kind] += 1
        unnamed[kind] += not chosen
    return layers, draw(st.booleans())


def wanted_of(layers: list[Layer], chain: bool) -> list[Wanted]:
    return [
        item
        for each in layers
        for item in layer(
            each.path,
            each.variables,
            kind=each.kind,
            rank=each.rank,
            before=range(each.rank) if chain else (),
            automatic="." in each.path,
        )
    ]


Spelling = Callable[[Layer, str, int, int], str]  # of a layer, a variable, its index, and a number drawn for the layer
STYLES: dict[str, Spelling] = {
    "same": lambda each, leaf, index, drawn: f"model/{each.path}/{leaf}",
    "groups": lambda each, leaf, index, drawn: f"{each.path}/{each.path}/{leaf}:0",
    "wrapped": lambda each, leaf, index, drawn: f"tower_0/{each.path}/{leaf}",
    "inside": lambda each, leaf, index, drawn: f"net/{each.path}/{leaf}",
    "counters": lambda each, leaf, index, drawn: f"{SNAKE[each.kind]}_{drawn}/{leaf}",
    "renamed": lambda each, leaf, index, drawn: f"other{drawn}/{leaf}",
    "opaque": lambda each, leaf, index, drawn: f"arr_{drawn * 10 + index}",
    "keras 2": lambda each, leaf, index, drawn: f"layer_with_weights-{each.rank}/{leaf}/.ATTRIBUTES/VARIABLE_VALUE",
    "keras 3": lambda each, leaf, index, drawn: f"layers/{SNAKE[each.kind]}_{each.number}/vars/{index}",
}
ALONG_THE_GRAPH = ("keras 2", "keras 3")


@settings(max_examples=400, deadline=None)
@given(model=models(), data=st.data())
def test_right_or_ambiguous_and_never_wrong(model: tuple[list[Layer], bool], data: st.DataObject) -> None:
    layers, chain = model
    mixed = data.draw(st.booleans())
    style = data.draw(st.sampled_from(sorted(STYLES)))
    drawn = data.draw(st.permutations(range(len(layers))))
    if not chain and style in ALONG_THE_GRAPH:  # side by side: any order may be the file's
        order = data.draw(st.permutations(range(len(layers))))
        counts: Counter[str] = Counter()
        moved = {}
        for rank, index in enumerate(order):
            moved[index] = dataclasses.replace(layers[index], rank=rank, number=counts[layers[index].kind])
            counts[layers[index].kind] += 1
        as_stored = [moved[index] for index in range(len(layers))]
    else:
        as_stored = layers
    identity: dict[str, float] = {}
    have: list[FileTensor] = []
    for place, (each, number) in enumerate(zip(as_stored, drawn, strict=True)):
        chosen = data.draw(st.sampled_from(["counters", "renamed", "opaque", style])) if mixed else style
        for index, (leaf, shape) in enumerate(each.variables.items()):
            value = np.full(shape, place * 10 + index, np.float32)
            have.append(tensor(STYLES[chosen](each, leaf, index, number), value))
            identity[f"model/{layers[place].path}/{leaf}"] = place * 10 + index
    have = data.draw(st.permutations(have))
    wanted = wanted_of(layers, chain)
    lose = data.draw(st.sampled_from(["nothing", "stored", "wanted"]))
    lost = data.draw(st.sampled_from(layers))
    gone = [identity[f"model/{lost.path}/{leaf}"] for leaf in lost.variables]
    if lose == "stored":
        have = [item for item in have if item.array().flat[0] not in gone]
    if lose == "wanted":
        wanted = [item for item in wanted if item.layer != lost.path]

    mapping = propose(have, wanted)

    for name, value in arrays(mapping):
        assert value.flat[0] == identity[name], mapping
    told = [item.name for found in mapping.ambiguous for item in found.wanted]
    told += [item.name for item in mapping.missing] + [pair.wanted.name for pair in mapping.pairs]
    assert sorted(told + [item.wanted.name for item in mapping.misfits]) == sorted(item.name for item in wanted)
    used = [item.name for found in mapping.ambiguous for item in found.stored] + [i.name for i in mapping.unused]
    used += [pair.stored.name for pair in mapping.pairs] + [item.stored.name for item in mapping.misfits]
    assert sorted(used) == sorted(item.name for item in have)


@settings(max_examples=150, deadline=None)
@given(model=models(), style=st.sampled_from(["same", "groups", "wrapped", "inside"]), data=st.data())
def test_chosen_names_are_always_mapped(model: tuple[list[Layer], bool], style: str, data: st.DataObject) -> None:
    layers = [dataclasses.replace(each, path=f"name{each.rank}") for each in model[0]]
    values = {
        STYLES[style](each, leaf, 0, 0): np.full(shape, each.rank, np.float32)
        for each in layers
        for leaf, shape in each.variables.items()
    }
    have = data.draw(st.permutations([tensor(name, value) for name, value in values.items()]))
    mapping = propose(have, wanted_of(layers, model[1]))
    assert mapping.complete
    for name, value in arrays(mapping):
        assert value.flat[0] == int(name.split("/")[1].removeprefix("name"))


@settings(max_examples=150, deadline=None)
@given(model=models(), style=st.sampled_from(ALONG_THE_GRAPH), data=st.data())
def test_a_chain_of_counted_layers_is_always_mapped(
    model: tuple[list[Layer], bool], style: str, data: st.DataObject
) -> None:
    layers = [dataclasses.replace(each, path=f"{SNAKE[each.kind]}.{each.number}") for each in model[0]]
    values = {
        STYLES[style](each, leaf, index, 0): np.full(shape, each.rank, np.float32)
        for each in layers
        for index, (leaf, shape) in enumerate(each.variables.items())
    }
    have = data.draw(st.permutations([tensor(name, value) for name, value in values.items()]))
    mapping = propose(have, wanted_of(layers, chain=True))
    assert mapping.complete
    ranks = {f"model/{each.path}/{leaf}": each.rank for each in layers for leaf in each.variables}
    assert {name: value.flat[0] for name, value in arrays(mapping)} == ranks
