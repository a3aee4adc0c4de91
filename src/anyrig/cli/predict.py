"""`anyrig predict`: the outputs of a model for arrays or images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text
from anyrig.report import words

if TYPE_CHECKING:
    from anyrig.cli.models import Opened
    from anyrig.exchange.trust import Trust

_SHOWN = 20  # rows of the table


@click.command("predict")
@click.argument("source")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=click.Path(path_type=Path))
@options.as_json
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE.npy", help="Write all outputs as an array, and no table."
)
@click.option(
    "--key", help="The array to use in a .npz file. Default: x, or the only one, or those of the inputs' names."
)
@click.option("--scale", metavar="NUMBER", help="What pixels (0 to 255) are multiplied by, e.g. 1/255, the default.")
@options.recipe_of_source
@options.into
@options.rules
@options.trust
@options.debug
def command(
    source: str,
    inputs: tuple[Path, ...],
    as_json: bool,
    output: Path | None,
    key: str | None,
    scale: str | None,
    recipe: str | None,
    into: str | None,
    rules: Path | None,
    trust: Trust,
) -> None:
    """Predict from arrays or images with a run, a checkpoint or a model file.

    SOURCE is a run directory (its newest checkpoint is used), a checkpoint, or a model in any format that `anyrig
    inspect` knows: .keras, .h5, a SavedModel; weights alone need --into or --recipe. INPUT is a .npy or .npz file, or
    PNG and JPEG images, which are made into the model's input: gray or color, size, scale; what was done is told on
    stderr.
    """
    from anyrig.cli.images import default_scale, parse_scale
    from anyrig.cli.inputs import read_inputs
    from anyrig.cli.models import fitting, is_run

    of_run = into is None and rules is None and is_run(source)
    opened = _of_run(source, recipe) if of_run else _of_file(source, trust, into, recipe, rules)
    factor = parse_scale(scale) if scale else default_scale(opened.model, opened.inputs)
    rows = read_inputs(list(inputs), opened.inputs, key=key, scale=factor)
    for note in (*opened.notes, *rows.notes):
        click.echo(note, err=True)
    with fitting(opened, rows.x):
        predicted = opened.model.predict(_with_text(rows.x), verbose=0)
    if output is not None:
        _write(output, predicted)
    if as_json:
        _echo_json(rows.labels, predicted)
    elif output is None:
        _echo_table(rows.labels, predicted)
    else:
        click.echo(f"wrote {output}: {text.shape(predicted.shape)} {predicted.dtype}")


def _of_file(source: str, trust: Trust, into: str | None, recipe: str | None, rules: Path | None) -> Opened:
    from anyrig.cli.models import open_file
    from anyrig.train.recipe.schema import load_recipe

    return open_file(source, trust, into, load_recipe(recipe) if recipe else None, rules)


def _of_run(source: str, recipe: str | None) -> Opened:
    from anyrig.cli.models import Opened, open_for_use
    from anyrig.topology.numeric import apply_numeric_settings
    from anyrig.train.recipe.schema import load_recipe
    from anyrig.train.recipe.source import open_sound

    checkpoint, notes = open_sound(source)
    apply_numeric_settings(checkpoint.record.get("numeric", {}))
    opened = open_for_use(checkpoint, load_recipe(recipe) if recipe else None)
    return Opened(opened.model, opened.inputs, tuple(notes))


def _with_text(x: Any) -> Any:
    """Return the rows with text as TensorFlow takes it; Keras refuses that of NumPy."""
    import keras
    import tensorflow as tf

    return keras.tree.map_structure(lambda leaf: tf.constant(leaf) if leaf.dtype.kind in "SU" else leaf, x)


def _write(path: Path, predicted: Any) -> None:
    import numpy as np

    from anyrig.errors import UsageError

    if not isinstance(predicted, np.ndarray):
        raise UsageError("ANY-CLI-008", "the model has several outputs, and --output writes one", hint="use --json")
    with path.open("wb") as stream:
        np.save(stream, predicted)


def _echo_json(labels: list[str], predicted: Any) -> None:
    import json

    rows = [
        {"input": label, **_summary(_row(predicted, index)), "output": _plain(_row(predicted, index))}
        for index, label in enumerate(labels)
    ]
    click.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _echo_table(labels: list[str], predicted: Any) -> None:
    rows = [{"input": label, **_summary(_row(predicted, index))} for index, label in enumerate(labels[:_SHOWN])]
    header = tuple(dict.fromkeys(name for row in rows for name in row))
    lines = [tuple(words.value(row.get(name, "")) for name in header) for row in rows]
    click.echo(text.table(header, lines, frozenset({"class", "probability", "score", "value"})))
    if len(labels) > _SHOWN:
        click.echo(f"… {len(labels) - _SHOWN:,} more rows (--output FILE.npy or --json for all)")


def _row(predicted: Any, index: int) -> Any:
    if isinstance(predicted, dict):
        return {name: _row(part, index) for name, part in predicted.items()}
    return [_row(part, index) for part in predicted] if isinstance(predicted, list) else predicted[index]


def _plain(row: Any) -> Any:
    if isinstance(row, dict):
        return {name: _plain(part) for name, part in row.items()}
    return [_plain(part) for part in row] if isinstance(row, list) else row.tolist()


def _summary(row: Any) -> dict[str, Any]:
    """Return the class and its probability (or score) of a list of classes, one number, or the shape of the rest."""
    if isinstance(row, dict | list):
        return {"output": f"{len(row)} outputs (see --json)"}
    if row.ndim == 1 and len(row) == 1:
        return {"value": float(row[0])}
    if row.ndim != 1:
        return {"output": f"{text.shape(row.shape)} (see --json or --output)"}
    best = int(row.argmax())
    is_distribution = bool((row >= 0).all()) and abs(float(row.sum()) - 1) < 1e-3
    return {"class": best, "probability" if is_distribution else "score": float(row[best])}
