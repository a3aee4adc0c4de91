"""Names of tensors as every format decorates them, brought to one form: a tuple of parts.

Nothing is decided here. Two names of one form may still be two things, which whoever compares them has to notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Parts = tuple[str, ...]

_END = re.compile(r"(/\.ATTRIBUTES/VARIABLE_VALUE)?(:\d+)?$")
_ROOTS = ("model_weights", "model", "root")
_WRAPPERS = re.compile(r"module|orig_mod|orig|(tower|replica)_\d+|(model|functional|sequential)(_\d+)?")
_POSITION = re.compile(r"(layer_with_weights)-(\d+)|(?P<snake>[a-z][a-z0-9_]*?)(?:\.(\d+)|_(\d+))?")
_FOREIGN = {"weight", "weights", "biases", "running_mean", "running_var", "w", "b"}
_WORDS = {
    "weight": "kernel", "weights": "kernel", "w": "kernel", "gamma": "kernel", "scale": "kernel",
    "embeddings": "kernel", "embedding": "kernel", "biases": "bias", "b": "bias", "beta": "bias", "offset": "bias",
    "running_mean": "moving_mean", "mean": "moving_mean", "running_var": "moving_variance",
    "moving_var": "moving_variance", "variance": "moving_variance", "var": "moving_variance",
}  # fmt: skip


def parts_of(name: str) -> Parts:
    """Return the parts of a name without the decorations of formats.

    Taken off are `:0` and the ending of TensorFlow's object checkpoints, what the root of a file is called, leading
    underscores, and the second of two equal parts in a row (groups of HDF5 files repeat the layer's name).
    """
    plain = _END.sub("", name)
    given = plain.split("/") if "/" in plain else plain.split(".")
    parts: list[str] = []
    for part in (part.lstrip("_") or part for part in given):
        if part and parts[-1:] != [part]:
            parts.append(part)
    while len(parts) > 2 and parts[0] in _ROOTS:
        parts.pop(0)
    return tuple(parts)


def in_common_words(parts: Parts) -> Parts:
    """Return the parts with the last one in one word for what several libraries call differently."""
    return (*parts[:-1], _WORDS.get(parts[-1], parts[-1]))


def speaks_foreign(names: Iterable[Parts]) -> bool:
    """Tell whether some variable is called as other libraries call it (`weight`, `running_mean`), not as Keras does."""
    return any(parts[-1] in _FOREIGN for parts in names)


def is_wrapper(part: str) -> bool:
    """Tell whether a part is what programs put around a model: `module`, `tower_0`, `model_1`."""
    return bool(_WRAPPERS.fullmatch(part))


def without_wrappers(parts: Parts) -> Parts:
    """Return the parts without the wrappers they begin with; at least two stay."""
    kept = list(parts)
    while len(kept) > 2 and is_wrapper(kept[0]):
        kept.pop(0)
    return tuple(kept)


def position_in(part: str, classes: frozenset[str]) -> tuple[str, int] | None:
    """Return what stands for a class and the number, if a part is a position: `dense_7`, `dense.0`, `dense`.

    `classes` are the snake-case class names that are known; `layer_with_weights-3` is a position of any class ("").
    """
    match = _POSITION.fullmatch(part)
    if match is None:
        return None
    if match[1]:
        return "", int(match[2])
    if match["snake"] in classes:
        return match["snake"], int(match[4] or match[5] or 0)
    return (part, 0) if part in classes else None


def layer_of(parts: Parts, classes: frozenset[str]) -> tuple[Parts, Parts]:
    """Split parts into the layer that a name or a position stands for, and the rest.

    The layer ends with the last part that is a position; without one it is all but the last part. Two last parts like
    `vars/0` stay together.
    """
    end = len(parts) - (2 if parts[-2:-1] == ("vars",) else 1)
    last = max((index for index, part in enumerate(parts[:end]) if position_in(part, classes)), default=end - 1)
    return parts[: last + 1], parts[last + 1 :]


def skeleton_of(layer: Sequence[str], classes: frozenset[str]) -> tuple[Parts, tuple[int, ...], Parts]:
    """Return the layer's path with positions replaced by their classes (`#dense`), their numbers, and the positions.

    What only groups layers (`layers`, wrappers at the beginning) is left out.
    """
    kept: list[str] = []
    numbers: list[int] = []
    positions: list[str] = []
    for part in layer:
        found = position_in(part, classes)
        if found is not None:
            kept.append(f"#{found[0]}")
            numbers.append(found[1])
            positions.append(part)
        elif part != "layers" and (kept or not is_wrapper(part)):
            kept.append(part)
    return tuple(kept), tuple(numbers), tuple(positions)
