"""Keras 3's weights layout (`.weights.h5`): groups named by class and order, variables `vars/0`, `vars/1`, ...

The name that the user gave a layer is only an attribute of its `vars`: it makes an alias of each tensor, and the name
is the path in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from anyrig.formats.contents import Contents, FileTensor, Role
from anyrig.formats.hdf5 import Tree
from anyrig.formats.hdf5_dataset import Stored

_VARIABLES = "vars"
_ROLES: dict[str, Role] = {"optimizer": "optimizer", "metrics": "other", "compile_metrics": "other"}
_RANDOM_STATE = "seed_generator"


def is_weights(tree: Tree) -> bool:
    """Tell whether a tree has this layout."""
    return any(path.split("/")[-1] == _VARIABLES for path in tree.attributes)


def weights(trees: Sequence[Tree]) -> tuple[FileTensor, ...]:
    """Return the tensors of a file, or of all shards of one, in the natural order of their paths."""
    names = {group: name for tree in trees for group in tree.attributes if (name := tree.text(group, "name"))}
    found = sorted(
        ((path, stored) for tree in trees for path, stored in tree.datasets.items()), key=lambda item: _order(item[0])
    )
    counts = Counter(_as_the_user_named(path, names) for path, _ in found)
    return tuple(_tensor(path, stored, names, counts) for path, stored in found)


def model_name(tree: Tree) -> str | None:
    """Return the name of the model itself, where the file has it."""
    return tree.text(_VARIABLES, "name")


def contents(tree: Tree) -> Contents:
    """Return the contents of one file with this layout."""
    name = model_name(tree)
    return Contents(
        format="keras_weights",
        words="Keras 3 weights",
        path=tree.image.path,
        tensors=weights((tree,)),
        metadata={"name": name} if name else {},
        files=((tree.image.file, tree.image.size),),
    )


def _tensor(path: str, stored: Stored, names: dict[str, str], counts: Counter[str]) -> FileTensor:
    alias = _as_the_user_named(path, names)
    role = _ROLES.get(path.partition("/")[0], "other" if _RANDOM_STATE in path.split("/") else "weight")
    return stored.tensor(path, aliases=(alias,) if counts[alias] == 1 else (), role=role)


def _as_the_user_named(path: str, names: dict[str, str]) -> str:
    """Return `encoder/alpha/0` for `layers/sequential/layers/dense/vars/0`."""
    *groups, variable = path.split("/")
    steps = ["/".join(groups[: end + 1]) for end in range(len(groups))]
    given = [names[f"{step}/{_VARIABLES}"] for step in steps if f"{step}/{_VARIABLES}" in names]
    return "/".join([*given, variable])


def _order(path: str) -> tuple[bool, list[tuple[int, str]]]:
    """Sort `dense_2` before `dense_10`, and the optimizer last."""
    parts = re.findall(r"\d+|\D+", path)
    return path.startswith("optimizer/"), [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
