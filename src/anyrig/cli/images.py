"""Images as rows of a model's input: turned upright, made gray or coloured, resized, scaled.

Every conversion of an image is told, because a wrong one gives a wrong prediction and no error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyrig.errors import UsageError

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_WORDS = {"L": "grayscale", "1": "black and white", "P": "palette", "LA": "grayscale with alpha"}
_BYTE = 255
_DEEP = 65535


def read_images(paths: list[Path], takes: Any, scale: float) -> tuple[NDArray[np.float32], list[str]]:
    """Return the images as rows of the one input that a model `takes` (None: not known), and what was done to each."""
    shape = _image_shape(takes)
    read = [_image(path, shape, scale) for path in paths]
    sizes = {array.shape for array, _ in read}
    if len(sizes) > 1:
        raise UsageError(
            "ANY-CLI-006",
            "the images have different sizes, and the model takes any size",
            hint="give images of one size, or predict them one by one",
        )
    return np.stack([array for array, _ in read]), [note for _, note in read]


def refuse_other_files(path: Path) -> None:
    """Raise UsageError unless `path` begins as an image does."""
    from PIL import Image, UnidentifiedImageError

    try:
        Image.open(path).close()
    except FileNotFoundError as error:
        raise not_there(path) from error
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


def not_there(path: Path) -> UsageError:
    """Return the error for a file that does not exist."""
    return UsageError("ANY-CLI-004", f"{path}: there is no such file", hint="check the path of the input")
