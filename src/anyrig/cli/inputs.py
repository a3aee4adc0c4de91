"""What `predict` and `evaluate` are given: arrays in .npy and .npz files, and images, as the model's inputs.

Every conversion of an image is told, because a wrong one gives a wrong prediction and no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyrig.errors import AnyrigError, UsageError

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


def read_inputs(paths: list[Path], shape: Any, *, key: str | None, scale: float) -> Inputs:
    """Return the rows in `paths`: one .npy or .npz file, or any number of images.

    `shape` is the model's input shape without rows (None: it has several inputs); pixels are multiplied by `scale`.
    """
    arrays = [path for path in paths if path.suffix.lower() in (".npy", ".npz")]
    if not arrays:
        return _images(paths, shape, scale)
    if len(paths) > 1:
        raise UsageError(
            "ANY-CLI-003",
            f"{arrays[0]} comes with other inputs",
            hint="give one .npy or .npz file, or any number of images",
        )
    x = _load(paths[0], key)
    rows = len(next(iter(x.values())) if isinstance(x, dict) else x)
    return Inputs(x, [f"{paths[0].name}[{row}]" for row in range(rows)], [])


def _load(path: Path, key: str | None) -> Any:
    try:
        with path.open("rb") as stream:
            found = np.load(stream, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else _of_archive(found, path, key)
    except FileNotFoundError as error:
        raise UsageError("ANY-CLI-004", f"{path}: there is no such file", hint="check the path of the input") from error
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            "ANY-CLI-004", f"{path}: it is no file of plain NumPy arrays ({error})", hint="write it with numpy.save"
        ) from error


def _of_archive(archive: Any, path: Path, key: str | None) -> Any:
    """Return the array named `key`, else "x", else the only one; else all, for a model with inputs of those names."""
    wanted = key or ("x" if "x" in archive.files else archive.files[0] if len(archive.files) == 1 else None)
    if wanted is None:
        return {name: archive[name] for name in archive.files}
    if wanted not in archive.files:
        raise UsageError(
            "ANY-CLI-005", f"{path} has no array {wanted}", hint=f"use one of: --key {' | '.join(archive.files)}"
        )
    return archive[wanted]


def _images(paths: list[Path], shape: Any, scale: float) -> Inputs:
    if shape is None or len(shape) not in (2, 3) or (len(shape) == 3 and shape[-1] not in _MODES):
        raise UsageError(
            "ANY-CLI-006",
            f"an image cannot be made into this model's input {shape}; expected (height, width[, 1, 3 or 4])",
            hint="convert it yourself and give a .npy file",
        )
    read = [_image(path, shape, scale) for path in paths]
    sizes = {array.shape for array, _ in read}
    if len(sizes) > 1:
        raise UsageError(
            "ANY-CLI-006",
            "the images have different sizes, and the model takes any size",
            hint="give images of one size, or predict them one by one",
        )
    return Inputs(np.stack([array for array, _ in read]), [path.name for path in paths], [note for _, note in read])


def _image(path: Path, shape: Any, scale: float) -> tuple[NDArray[np.float32], str]:
    """Return the image as the model's input, and what was done to it."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            before = f"{opened.height} x {opened.width} {_WORDS.get(opened.mode, opened.mode)}"
            image = ImageOps.exif_transpose(opened)
            image = _eight_bit(image).convert(_MODES[shape[2] if len(shape) > 2 else 1])
    except FileNotFoundError as error:
        raise UsageError("ANY-CLI-004", f"{path}: there is no such file", hint="check the path of the input") from error
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(
            "ANY-CLI-004",
            f"{path}: it is no image that can be read ({error})",
            hint="give PNG, JPEG, .npy or .npz files",
        ) from error
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


def default_scale(model: Any) -> float:
    """Return what pixels 0..255 are multiplied by: 1/255, or 1 for a model that begins by rescaling them itself."""
    first = [type(layer).__name__ for layer in getattr(model, "layers", [])[:2]]
    return 1.0 if {"Rescaling", "Normalization"} & set(first) else 1 / _BYTE


def parse_scale(text: str) -> float:
    """Return the number in "0.0625" or "1/16"."""
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(
            "ANY-CLI-007", f"--scale: expected a number, found {text}", hint="e.g. --scale 1/255"
        ) from error


def input_shape(model: Any) -> tuple[int | None, ...] | None:
    """Return the shape of a row of the model's one input; None where there are several or it is not known."""
    try:
        shape = model.input_shape
    except (AttributeError, ValueError) as error:
        if isinstance(error, AttributeError):
            return None
        raise AnyrigError(
            "ANY-CLI-006", f"the model does not tell its input shape: {error}", hint="give a .npy file"
        ) from error
    return tuple(shape[1:]) if isinstance(shape, tuple) else None
