"""Keras 3's weights layout (`.weights.h5`): groups named by class and order, variables `vars/0`, `vars/1`, ...

The name that the user gave a layer is only an attribute of its `vars`: it makes an alias of each tensor, and the name
is the path in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyrig.formats.contents import Budget, Contents, FileTensor, Role, damaged, over_budget
from anyrig.formats.hdf5 import Tree, parse
from anyrig.formats.hdf5_dataset import Stored
from anyrig.formats.hdf5_image import Image, image_of
from anyrig.formats.shards import index_at, is_index, safe_member, weight_map

_VARIABLES = "vars"
_INDEX, _SUFFIX = ".weights.json", ".weights.h5"
_SHARD = re.compile(r"(.+)_\d{5}\.weights\.h5")
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


def contents(tree: Tree) -> Contents:
    """Return the contents of one file with this layout."""
    name, part = tree.text(_VARIABLES, "name"), _SHARD.fullmatch(tree.image.file)
    return Contents(
        format="keras-weights",
        words="Keras 3 weights",
        path=tree.image.path,
        tensors=weights((tree,)),
        metadata={"name": name} if name else {},
        files=((tree.image.file, tree.image.size),),
        notes=(f"it is one of several files: open {part[1]}{_INDEX} for the whole",) if part else (),
    )


def recognize(path: Path) -> Path | None:
    """Return the path of the index of a model that was cut into several files, also for their folder."""
    if path.is_dir():
        indexes = [found for found in sorted(path.glob(f"*{_INDEX}")) if is_index(found, _SUFFIX)]
        return indexes[0] if len(indexes) == 1 else None
    return path if is_index(path, _SUFFIX) else None


def read(path: Path, budget: Budget) -> Contents:
    """Return what all files hold that an index names."""
    index = index_at(path, budget)
    tensors = sharded(path, index, lambda name: image_of(safe_member(path.parent, name), path), budget)
    sizes = {name: (path.parent / name).stat().st_size for name in (path.name, *_shards(path, index))}
    return Contents(
        format="keras-weights",
        words="Keras 3 weights in several files",
        path=path,
        tensors=tensors,
        files=tuple(sizes.items()),
        unchecked=("the numbers: HDF5 stores no checksum unless asked",),
    )


def sharded(
    path: Path, index: Mapping[str, Any], image: Callable[[str], Image], budget: Budget
) -> tuple[FileTensor, ...]:
    """Return the tensors of all files that an index names, after a count: nothing that it promises may be missing."""
    shards = _shards(path, index)
    if len(shards) > budget.tensors:
        raise over_budget(path, f"it names {len(shards)} files")
    trees = {name: parse(image(name), budget) for name in shards}
    for group, names in weight_map(path, index).items():
        for name in names:
            if not any(found.startswith(f"{group.strip('/')}/") for found in trees[name].datasets):
                raise damaged(path, f"its index says that {name!r} holds {group!r}, and it does not")
    tensors = weights(tuple(trees.values()))
    if repeated := [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]:
        raise damaged(path, f"{repeated[0]!r} stands in several of its files")
    promised = index.get("metadata", {}).get("total_size") if isinstance(index.get("metadata"), dict) else None
    held = sum(tensor.elements / 8 if tensor.dtype == "BOOL" else tensor.nbytes for tensor in tensors)
    if isinstance(promised, int | float) and promised != held:
        raise damaged(path, f"its index promises {promised:.0f} bytes of tensors, its files hold {held:.0f}")
    return tensors


def _shards(path: Path, index: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in weight_map(path, index).values() for name in names))


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
