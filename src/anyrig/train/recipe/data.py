"""Opens the arrays that a recipe names: .npy files are mapped, .npz files are read; pickled objects never are."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from anyrig.errors import UsageError
from anyrig.train.recipe.errors import suggestion
from anyrig.train.recipe.schema import DataSource, Keys

Array = NDArray[Any]
Arrays = Array | dict[str, Array]
Rows = tuple[Arrays, Arrays | None, Array | None]


def load_data(source: DataSource, base_dir: Path, *, key: str = "data.train") -> Rows:
    """Return (x, y, sample_weight) of `source`; `key` is where it stands in the recipe, for messages.

    x and y are one array each, or a dict of arrays. Raises UsageError when a file or key is missing, rows do not match,
    there are none, or an array holds Python objects.
    """
    rows = _from_arrays(source, base_dir, key) if source.arrays else _from_npz(source, base_dir, key)
    named = dict(_named(rows))
    _check_dtypes(named, key)
    _check_rows(named, key)
    return rows


def _from_arrays(source: DataSource, base_dir: Path, key: str) -> Rows:
    files = source.arrays
    assert files is not None  # the caller has looked

    def opened(entry: str | dict[str, str] | None, name: str) -> Any:
        if isinstance(entry, Mapping):
            return {part: opened(path, f"{name}.{part}") for part, path in entry.items()}
        return None if entry is None else _mapped(base_dir / entry, f"{key}.arrays.{name}")

    return opened(files.x, "x"), opened(files.y, "y"), opened(files.sample_weight, "sample_weight")


def _from_npz(source: DataSource, base_dir: Path, key: str) -> Rows:
    path = base_dir / str(source.npz)
    with _opened(path, f"{key}.npz") as stream:
        return _members(_load(stream, path, f"{key}.npz"), source, path, key)


def _members(archive: Any, source: DataSource, path: Path, key: str) -> Rows:
    if isinstance(archive, np.ndarray):
        raise _unreadable(
            f"{key}.npz", path, "it holds a single array", "write `arrays: {x: ..., y: ...}` for .npy files"
        )

    def read(keys: Keys | None, name: str) -> Any:
        if isinstance(keys, str):
            return _member(archive, keys, f"{key}.{name}", path)
        named = {each: each for each in keys} if isinstance(keys, list) else keys
        return None if named is None else {part: read(each, name) for part, each in named.items()}

    return read(source.x, "x"), read(source.y, "y"), read(source.sample_weight, "sample_weight")


def _mapped(path: Path, key: str) -> Array:
    """Return the array in the .npy file at `path`, mapped into memory."""
    _opened(path, key).close()
    array = _load(path, path, key, mmap_mode="r")
    if isinstance(array, np.ndarray):
        return array
    array.close()
    raise _unreadable(key, path, "it holds several arrays", "write `npz: ...` and the keys for .npz files")


def _opened(path: Path, key: str) -> IO[bytes]:
    """Return the open file at `path`, which the caller closes."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        reason, hint = "there is no such file", "paths start from the recipe's folder"
    except IsADirectoryError:
        reason, hint = "this is a folder", "name a .npy or .npz file"
    except OSError as error:
        reason, hint = f"it cannot be read ({error.strerror})", "check the file's permissions"
    raise _unreadable(key, path, reason, hint)


def _load(file: Path | IO[bytes], path: Path, key: str, mmap_mode: Any = None) -> Any:
    """Return what `numpy.load` returns, without pickle."""
    try:
        return np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        hint = "write the file with numpy.save or numpy.savez, with arrays of numbers"
        raise _unreadable(key, path, _why_not_arrays(error), hint) from error


def _why_not_arrays(error: Exception) -> str:
    if any(word in str(error) for word in ("pickle", "Object arrays", "Python objects")):
        return "it is no file of plain NumPy arrays, or it holds Python objects, which are never loaded"
    return f"it is no file of NumPy arrays, or it is damaged ({error})"


def _member(archive: Any, name: str, key: str, path: Path) -> Array:
    if name not in archive.files:
        near = suggestion(name, archive.files)
        found = ", ".join(archive.files) or "nothing"
        raise UsageError("ANY-RECIPE-016", f"{key}: {path} has no array {name}{near}", hint=f"the file holds: {found}")
    try:
        return np.asarray(archive[name])
    except (ValueError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise _unreadable(key, path, f"{name}: {_why_not_arrays(error)}", "write it again with numpy.savez") from error


def _unreadable(key: str, path: Path, reason: str, hint: str) -> UsageError:
    return UsageError("ANY-RECIPE-015", f"{key}: {path}: {reason}", hint=hint)


def _named(rows: Rows) -> Iterator[tuple[str, Array]]:
    """Yield ("x", array) or ("x.left", array) for each array there is."""
    for name, part in zip(("x", "y", "sample_weight"), rows, strict=True):
        if isinstance(part, dict):
            yield from ((f"{name}.{key}", array) for key, array in part.items())
        elif part is not None:
            yield name, part


def _check_dtypes(arrays: Mapping[str, Array], key: str) -> None:
    for name, array in arrays.items():
        if array.dtype.hasobject or array.dtype.kind == "V":
            raise UsageError(
                "ANY-RECIPE-017",
                f"{key}: {name} has dtype {array.dtype}; expected numbers, booleans or text",
                hint="save it as an array with a plain dtype such as float32",
            )


def _check_rows(arrays: Mapping[str, Array], key: str) -> None:
    counts = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    found = ", ".join(
        f"{name} {'is one value' if rows is None else f'has {rows:,} rows'}" for name, rows in counts.items()
    )
    if len(set(counts.values())) > 1 or None in counts.values():
        raise UsageError(
            "ANY-RECIPE-018",
            f"{key}: the rows do not match: {found}",
            hint="give one row of y (and sample_weight) for each row of x",
        )
    if not all(counts.values()):
        raise UsageError("ANY-RECIPE-019", f"{key}: there are no rows: {found}", hint="give at least one row")
