"""Folders of Orbax, as Keras's `OrbaxCheckpoint` callback and JAX programs write them: a step, or the newest of some.

Names, roles and the model's configuration are read here; the arrays (zarr, mostly inside an OCDBT database) by the
tensorstore package, an extra, which is asked only for arrays that the folder lists.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anyrig.errors import UsageError
from anyrig.formats.contents import Budget, Contents, FileTensor, Role, damaged, over_budget, unsafe
from anyrig.formats.jsontext import json_object
from anyrig.formats.keras_h5 import only_once, slot_of
from anyrig.formats.tf_table import read_bytes, size_of
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype, spelling_of

if TYPE_CHECKING:
    import numpy as np

_STEP, _ITEM, _DATABASE, _TEXTS = "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "_strings.json"
_ROLES: Mapping[str, Role] = {"optimizer_variables": "optimizer", "metrics_variables": "other"}
_OF_KERAS = frozenset({"trainable_variables", "non_trainable_variables", *_ROLES})
_SLAB_BYTES = 2**24


class _Array(NamedTuple):
    """An array of an item: the keys that lead to it, and where the library finds it."""

    keys: tuple[str, ...]
    spec: dict[str, Any]


def recognize(path: Path) -> Path | None:
    """Return the folder of a step: the one given, or the one with the highest number in it."""
    try:
        if not path.is_dir():
            return None
        if _is_step(path):
            return path
        steps = [int(name) for name in os.listdir(path) if name.isdecimal() and _is_step(path / name)]
    except OSError:
        return None
    return path / str(max(steps)) if steps else None


def _is_step(folder: Path) -> bool:
    return (folder / _STEP).is_file() or (folder / _ITEM).is_file() or bool(_items(folder))


def _items(folder: Path) -> list[str]:
    """Return the names of a step's trees; the empty one stands for the folder itself."""
    if (folder / _ITEM).is_file():
        return [""]
    return sorted(name for name in os.listdir(folder) if (folder / name / _ITEM).is_file())


def read(path: Path, budget: Budget) -> Contents:
    """Return the arrays of a step. Raises ANY-FORMAT-040 without the library, 002 to 004 for what cannot be."""
    _refuse_links(path, budget)
    items = {name: _json(path / name / _ITEM, budget) for name in _items(path)}
    arrays = {name: _arrays(path / name, item, budget) for name, item in items.items()}
    named = {name: found for name, found in arrays.items() if found}
    tensors = [_tensor(path, name if len(named) > 1 else "", one) for name, found in named.items() for one in found]
    if sum(tensor.nbytes for tensor in tensors) > budget.ratio * sum(size for _, size in _files(path)):
        raise over_budget(path, "its arrays claim far more bytes than its files have")
    texts = [_json(path / name / _TEXTS, budget) for name in items if (path / name / _TEXTS).is_file()]
    config = next((found for each in texts if (found := _config(path, each, budget))), None)
    compiled = (config or {}).get("compile_config")
    return Contents(
        format="orbax",
        words="a folder of Orbax",
        path=path,
        tensors=_with_slots(tensors),
        config=config,
        compile_config=compiled if isinstance(compiled, dict) else None,
        metadata=_json(path / _STEP, budget) if (path / _STEP).is_file() else {},
        files=tuple(_files(path)),
        checked=("the checksums of the database's nodes and packed chunks",),
    )


def _json(file: Path, budget: Budget) -> dict[str, Any]:
    if (size := size_of(file)) > budget.header_bytes:
        raise over_budget(file, f"it has {size} bytes")
    return json_object(file, "it", read_bytes(file, 0, size), budget)


def _files(path: Path) -> Iterator[tuple[str, int]]:
    for here, _, names in sorted(os.walk(path)):
        yield from (
            (Path(here, name).relative_to(path).as_posix(), size_of(Path(here, name))) for name in sorted(names)
        )


def _refuse_links(path: Path, budget: Budget) -> None:
    """Refuse a link anywhere in the folder: the library would follow it."""
    count = 0
    for here, folders, names in os.walk(path):
        count += len(folders) + len(names)
        if count > budget.tensors:
            raise over_budget(path, f"it has more than {budget.tensors} files")
        for name in (*folders, *names):
            if Path(here, name).is_symlink():
                raise unsafe(Path(here, name), "it is a link")


def _config(path: Path, texts: Mapping[str, Any], budget: Budget) -> dict[str, Any] | None:
    text = texts.get("config")
    return json_object(path, "the configuration of the model", text, budget) if isinstance(text, str) else None


def _arrays(folder: Path, item: Mapping[str, Any], budget: Budget) -> list[_Array]:
    tree = item.get("tree_metadata")
    if not isinstance(tree, dict):
        raise damaged(folder / _ITEM, "it lists no tree")
    if len(tree) > budget.tensors:
        raise over_budget(folder / _ITEM, f"it lists {len(tree)} arrays")
    found = []
    for entry in tree.values():
        try:
            value = entry["value_metadata"]
            keys = tuple(str(one["key"]) for one in entry["key_metadata"])
            if not value.get("skip_deserialize") and value["value_type"] not in ("string", "None"):
                found.append(_Array(keys, _spec(folder, item, keys)))
        except (TypeError, KeyError, AttributeError):
            raise damaged(folder / _ITEM, "an entry of its tree is not valid") from None
    return found


def _spec(folder: Path, item: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return where the library finds an array: in the database of the folder, or in a folder of its own."""
    name, base = ".".join(keys), f"file://{folder.absolute()}/"
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise unsafe(folder / _ITEM, f"the name {name!r} in it leaves the folder")
    inside = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    return {
        "driver": "zarr3" if item.get("use_zarr3") else "zarr",
        "kvstore": inside if (folder / _DATABASE).is_file() else f"{base}{name}/",
        "fill_missing_data_reads": not item.get("store_array_data_equal_to_fill_value"),
    }


def _store(path: Path, array: _Array) -> Any:
    """Open an array; what the library raises becomes an error of this project."""
    try:
        import tensorstore
    except ImportError:
        raise UsageError(
            "ANY-FORMAT-040",
            f"{path} is a folder of Orbax, and the package that reads its arrays is not installed.",
            hint="pip install 'anyrig[orbax]'",
        ) from None
    try:
        return tensorstore.open(array.spec, open=True, read=True).result()
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise _faulty(path, array, error) from error


def _faulty(path: Path, array: _Array, error: Exception) -> Exception:
    said = " ".join(str(error).split("[tensorstore_spec=")[0].split())[:200]
    return damaged(path, f"{'/'.join(array.keys)}: {said}")


def _tensor(path: Path, item: str, array: _Array) -> FileTensor:
    store = _store(path, array)
    kind, shape = store.dtype.numpy_dtype, tuple(store.shape)
    group, *rest = array.keys
    name = "/".join(([item] if item else []) + list(array.keys))
    return FileTensor(
        name=name,
        dtype=spelling_of(kind) or kind.name,
        shape=shape,
        nbytes=math.prod(shape) * kind.itemsize,
        origin=path,
        file=item or path.name,
        read=partial(_read, path, array, store),
        aliases=("/".join(rest),) if group in _OF_KERAS and rest else (),
        role="other" if "seed_generator_state" in rest else _ROLES.get(group, "weight"),
    )


def _read(path: Path, array: _Array, store: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements, some rows at a time; of a type that is not known here, the bytes."""
    import numpy as np

    kind, shape = store.dtype.numpy_dtype, tuple(store.shape)
    spelling = spelling_of(kind)
    rows = shape[0] if shape else 1
    step = max(1, _SLAB_BYTES // max(1, math.prod(shape[1:]) * kind.itemsize))
    for start in range(0, rows, step):
        part = store[start : min(rows, start + step)] if shape else store
        try:
            data = np.ascontiguousarray(part.read().result()).reshape(-1)
        except (ValueError, OSError, RuntimeError) as error:
            raise _faulty(path, array, error) from error
        known = spelling in ITEM_BYTES
        yield data.astype(numpy_dtype(spelling), copy=False) if spelling and known else data.view(np.uint8)


def _with_slots(tensors: list[FileTensor]) -> tuple[FileTensor, ...]:
    """Say of each slot of an optimizer of Keras which weight it belongs to, where its name tells."""
    weights = {tensor.aliases[0]: tensor.name for tensor in tensors if tensor.role == "weight" and tensor.aliases}
    flat = only_once((name.replace("/", "_"), of) for name, of in weights.items())
    found = []
    for tensor in tensors:
        of, slot = slot_of(tensor.aliases[0], weights, flat) if tensor.role == "optimizer" else (None, None)
        found.append(replace(tensor, of=of, slot=slot))
    return tuple(found)
