"""The files of the demo: real handwritten digits from scikit-learn, the model's source, a recipe, a picture."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import numpy as np

from anyrig.errors import AnyrigError, UsageError

MARKER = ".anyrig-demo"
PICTURE_ROW = 42

_RECIPE = """\
# The recipe of the demo. Try: anyrig plan {folder}/recipe.yaml --devices 3
model: digits.py:build_model
data:
  train: {{npz: digits.npz, x: train_x, y: train_y}}
  validation: {{npz: digits.npz, x: held_out_x, y: held_out_y}}
batch: {{global_size: 64, virtual_replicas: 4}}   # 1,437 rows: the last batch of an epoch has 29
epochs: {epochs}
checkpoint: {{every: 5 steps, keep_last: 3}}
seed: 0
"""


def prepare(folder: Path, epochs: int) -> None:
    """Write data, model source, recipe and one digit as PNG into `folder`, replacing an earlier demo there."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARKER).exists():
            raise UsageError(
                "ANY-DEMO-001",
                f"{folder} exists and is not an earlier demo",
                hint="give another place: anyrig demo --directory DIR",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    (folder / "digits.py").write_bytes(resources.files("anyrig.demo").joinpath("digits.py").read_bytes())
    (folder / "recipe.yaml").write_text(_RECIPE.format(folder=folder, epochs=epochs), encoding="utf-8")
    images, labels = _digits()
    held_out = np.arange(len(images)) % 5 == 0
    np.savez(
        folder / "digits.npz",
        train_x=images[~held_out],
        train_y=labels[~held_out],
        held_out_x=images[held_out],
        held_out_y=labels[held_out],
    )
    _write_png(folder / f"a-{labels[held_out][PICTURE_ROW]}.png", images[held_out][PICTURE_ROW])


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1,797 pictures, float32 of shape (rows, 8, 8, 1) in 0..1, and their labels 0 to 9."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise AnyrigError(
            "ANY-DEMO-002",
            "the demo's digits come with scikit-learn, which is not installed",
            hint="type: pip install 'anyrig[demo]'",
        ) from error
    digits = load_digits()
    return (digits.images / 16).astype(np.float32)[..., np.newaxis], digits.target.astype(np.int64)


def _write_png(path: Path, picture: np.ndarray) -> None:
    from PIL import Image

    Image.fromarray((picture[..., 0] * 255).round().astype(np.uint8)).save(path)
