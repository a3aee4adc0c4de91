"""What `predict` and `evaluate` are given: arrays in .npy and .npz files, and images, as the model's inputs.

Every conversion of an image is told, because a wrong one gives a wrong prediction and no error.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyrig.cli import text
from anyrig.errors import UsageError

Rows = tuple[Any, Any, Any]

_ARRAYS = (".npy", ".npz")
_NAME_THEM = "name the labels y, and the rows x or as the model's inputs: numpy.savez(FILE, x=..., y=...)"
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_WORDS = {"L": "grayscale", "1": "black and white", "P": "palette", "LA": "grayscale with alpha"}
_BYTE = 255
_DEEP = 65535


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows for a model: one array, or one for each named input; a label for each row; what was done to them."""

    x: Any
    labels: list[str]
    notes: list[str]


def read_inputs(paths: list[Path], takes: Any, *, key: str | None, scale: float) -> Inputs:
    """Return the rows in `paths`: one .npy or .npz file, or any number of images.

    `takes` is what the model takes (`anyrig.train.recipe.specs`; None: not known); pixels are multiplied by `scale`.
    """
    arrays = [path for path in paths if path.suffix.lower() in _ARRAYS]
    if not arrays:
        return _images(paths, takes, scale)
    if len(paths) > 1:
        raise UsageError(
            "ANY-CLI-003",
            f"{arrays[0]} comes with other inputs",
            hint="give one .npy or .npz file, or any number of images",
        )
    found = _load(paths[0])
    if isinstance(found, dict):
        x = _x_of(found, paths[0], takes, key, hint=f"use one of: --key {' | '.join(found)}")
    elif _names(takes):
        raise _needs_names(takes)
    else:
        x = found
    return Inputs(x, [f"{paths[0].name}[{row}]" for row in range(_rows(x))], [])


def read_rows(path: Path, takes: Any, labels: list[list[str]]) -> Rows:
    """Return (x, y, None) of an .npz file to evaluate on.

    x is the array x, or those named as the model's inputs; y is the array y, or all those named by one of `labels`.
    """
    found = _load(path)
    if not isinstance(found, dict):
        raise UsageError("ANY-CLI-005", f"{path} holds one array, without a name", hint=_NAME_THEM)
    x = _x_of(found, path, takes, None, hint=_NAME_THEM)
    for names in (["y"], *labels):
        if names and not set(names) - found.keys():
            return x, found[names[0]] if len(names) == 1 else {name: found[name] for name in names}, None
    others = dict.fromkeys(text.listed(names) for names in labels if names and names != ["y"])
    named = f", nor any named {' or '.join(others)}" if others else ""
    raise UsageError("ANY-CLI-005", f"{path} has no array y{named}; it holds {_held(found)}", hint=_NAME_THEM)


def _load(path: Path) -> Any:
    """Return the array in a .npy file, or a dict of the arrays in an .npz file."""
    try:
        with path.open("rb") as stream:
            found = np.load(stream, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except FileNotFoundError as error:
        raise _not_there(path) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            "ANY-CLI-004", f"{path}: it is no file of plain NumPy arrays ({error})", hint="write it with numpy.save"
        ) from error


def _x_of(found: dict[str, Any], path: Path, takes: Any, key: str | None, *, hint: str) -> Any:
    """Return the arrays named as the inputs; for one input, the array named `key`, else x, else the only one."""
    names = _names(takes)
    if names and key is None:
        missing = [name for name in names if name not in found]
        if missing:
            raise UsageError(
                "ANY-CLI-005",
                f"{path} has no array {text.listed(missing)}; it holds {_held(found)}",
                hint=f"this model takes {text.listed(names)}: give an .npz with these names",
            )
        x = {name: found[name] for name in names}
        return list(x.values()) if isinstance(takes, list) else x
    wanted = key or ("x" if "x" in found else next(iter(found)) if len(found) == 1 else None)
    if wanted not in found:
        what = f"no array {wanted}" if wanted else "several arrays, and none is named x"
        raise UsageError("ANY-CLI-005", f"{path} has {what}; it holds {_held(found)}", hint=hint)
    return found[wanted]


def _names(takes: Any) -> list[str]:
    """Return the names that a model's several inputs have in an .npz file, as numpy.savez(a, b) names a list's."""
    if isinstance(takes, dict):
        return list(takes)
    return [f"arr_{index}" for index in range(len(takes))] if isinstance(takes, list) else []


def _needs_names(takes: Any) -> UsageError:
    named = text.listed(_names(takes))
    return UsageError(
        "ANY-CLI-006",
        f"this model takes {named}, and not one array or image",
        hint="give an .npz with these names",
    )


def _held(found: dict[str, Any]) -> str:
    return text.listed(list(found)) or "nothing"


def _rows(x: Any) -> int:
    parts = list(x.values()) if isinstance(x, dict) else x if isinstance(x, list) else [x]
    return len(parts[0])


def _not_there(path: Path) -> UsageError:
    return UsageError("ANY-CLI-004", f"{path}: there is no such file", hint="check the path of the input")


def _images(paths: list[Path], takes: Any, scale: float) -> Inputs:
    for path in paths:
        _refuse_other_files(path)
    shape = _image_shape(takes)
    read = [_image(path, shape, scale) for path in paths]
    sizes = {array.shape for array, _ in read}
    if len(sizes) > 1:
        raise UsageError(
            "ANY-CLI-006",
            "the images have different sizes, and the model takes any size",
            hint="give images of one size, or predict them one by one",
        )
    return Inputs(np.stack([array for array, _ in read]), [path.name for path in paths], [note for _, note in read])


def _refuse_other_files(path: Path) -> None:
    """Raise unless `path` begins as an image does."""
    from PIL import Image, UnidentifiedImageError

    try:
        Image.open(path).close()
    except FileNotFoundError as error:
        raise _not_there(path) from error
    except IsADirectoryError as error:
        raise UsageError("ANY-CLI-004", f"{path}: this is a folder", hint=f"name files, e.g. {path}/*.png") from error
    except UnidentifiedImageError as error:
        raise UsageError(
            "ANY-CLI-004",
            f"{path}: it is neither an array file nor an image",
            hint="give PNG, JPEG, .npy or .npz files",
        ) from error
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise _unreadable_image(path, error) from error


def _unreadable_image(path: Path, error: Exception) -> UsageError:
    return UsageError(
        "ANY-CLI-004", f"{path}: it is no image that can be read ({error})", hint="give PNG, JPEG, .npy or .npz files"
    )


def _image_shape(takes: Any) -> tuple[int | None, ...]:
    """Return the shape of a row, which an image can be made into."""
    if _names(takes):
        raise _needs_names(takes)
    shape: tuple[int | None, ...] | None = None if takes is None else takes.shape[1:]
    if shape is None or len(shape) not in (2, 3) or (len(shape) == 3 and shape[-1] not in _MODES):
        found = "this model does not tell what it takes" if takes is None else f"this model takes rows of {takes}"
        raise UsageError(
            "ANY-CLI-006",
            f"{found}; an image can be made into height x width, alone or with 1, 3 or 4 channels",
            hint="convert it yourself and give a .npy file",
        )
    return shape


def _image(path: Path, shape: Any, scale: float) -> tuple[NDArray[np.float32], str]:
    """Return the image as the model's input, and what was done to it."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            before = f"{opened.height} x {opened.width} {_WORDS.get(opened.mode, opened.mode)}"
            image = ImageOps.exif_transpose(opened)
            image = _eight_bit(image).convert(_MODES[shape[2] if len(shape) > 2 else 1])
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise _unreadable_image(path, error) from error
    height, width = shape[0] or image.height, shape[1] or image.width
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.float32).reshape(height, width, *shape[2:]) * np.float32(scale)
    after = f"{height} x {width} {_WORDS.get(image.mode, image.mode)}"
    return (
        array,
        f"{path.name}: {before} -> {after}, pixels x {_fraction(scale)}: {array.min():.3g} to {array.max():.3g}",
    )


def _fraction(scale: float) -> str:
    """Return "1/255" for 0.00392157."""
    inverse = round(1 / scale) if scale else 0
    return f"1/{inverse}" if inverse > 1 and abs(scale * inverse - 1) < 1e-9 else f"{scale:.6g}"


def _eight_bit(image: Any) -> Any:
    """Return an image of 16-bit grays with 8 bits, which Pillow's `convert` would cut off."""
    if not image.mode.startswith("I"):
        return image
    from PIL import Image

    return Image.fromarray((np.asarray(image, dtype=np.float64) * (_BYTE / _DEEP)).round().astype(np.uint8))


def default_scale(model: Any, takes: Any) -> float:
    """Return what pixels 0..255 are multiplied by: 1/255, or 1 for a model that takes integers or rescales itself."""
    if "int" in getattr(takes, "dtype", ""):
        return 1.0
    first = [type(layer).__name__ for layer in getattr(model, "layers", [])[:2]]
    return 1.0 if {"Rescaling", "Normalization"} & set(first) else 1 / _BYTE


def parse_scale(written: str) -> float:
    """Return the number in "0.0625" or "1/16"."""
    top, _, bottom = written.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(
            "ANY-CLI-007", f"--scale: expected a number, found {written}", hint="e.g. --scale 1/255"
        ) from error
