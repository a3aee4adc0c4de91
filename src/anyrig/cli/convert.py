"""`anyrig convert`: a model from one format to another, with the proof that it is the same model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text

if TYPE_CHECKING:
    from anyrig.exchange.convert import Conversion
    from anyrig.exchange.trust import Trust

_REWRITTEN = "rewritten by this format; outputs were compared instead"


@click.command("convert")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option("--sample", type=click.Path(path_type=Path), metavar="FILE", help="Rows to compare on: .npy, .npz.")
@click.option("--lossy", is_flag=True, help="Leave out what the format of DST cannot hold.")
@options.into
@options.rules
@options.trust
@options.as_json
@options.debug
def command(
    source: str,
    target: Path,
    sample: Path | None,
    lossy: bool,
    into: str | None,
    rules: Path | None,
    trust: Trust,
    as_json: bool,
) -> None:
    """Write a model in another format, and prove that it is the same.

    SRC is anything that `anyrig inspect` knows. The suffix of DST is the format: .keras, .h5 (whole model),
    .weights.h5, .safetensors, .ckpt (TensorFlow checkpoint), .onnx, .tflite; a name without suffix becomes a SavedModel
    folder. Every array is read back and compared, and the new file predicts the same rows before it takes its place.
    State that the format cannot hold (an optimizer, a vocabulary) is refused, unless --lossy leaves it out.
    """
    from anyrig.cli.models import builder, naming
    from anyrig.exchange.convert import convert

    with naming(into):
        done = convert(
            source,
            target,
            trust=trust,
            into=builder(into) if into else None,
            rules=rules,
            sample=_rows(sample) if sample else None,
            lossy=lossy,
        )
    click.echo(_as_json(done) if as_json else _describe(done))


def _rows(path: Path) -> Any:
    from anyrig.cli.inputs import read_inputs

    return read_inputs([path], None, key=None, scale=1 / 255).x


def _describe(done: Conversion) -> str:
    saved = done.saved
    facts = [("wrote", f"{saved.path} ({saved.format})"), ("from", f"{done.source} ({done.source_format})")]
    facts += [("", f"{name} xxh3-128 {value}") for name, value in sorted(done.source_hash.items())]
    facts.append(("loaded", str(done.loaded).removeprefix("loaded ")))
    facts.append(("arrays", f"{saved.arrays:,} read back, the same bytes" if saved.arrays else _REWRITTEN))
    facts.append(("outputs", _outputs(done)))
    facts += [("left out", what) for what in saved.lost]
    facts += [("not in it", what) for what in saved.notes]
    facts += [("note", what) for what in done.notes]
    return text.facts(facts)


def _outputs(done: Conversion) -> str:
    if done.difference is None:
        return "not compared"
    if done.difference == 0:
        return f"the same bytes on {done.sample}"
    return f"equal on {done.sample}: largest difference {done.difference:.3g}, allowed {done.tolerance:.3g}"


def _as_json(done: Conversion) -> str:
    import json

    saved = done.saved
    return json.dumps(
        {
            "source": str(done.source),
            "source_format": done.source_format,
            "source_hash": dict(done.source_hash),
            "target": str(saved.path),
            "target_format": saved.format,
            "loaded": str(done.loaded),
            "arrays_equal": saved.arrays,
            "sample": done.sample,
            "difference": done.difference,
            "tolerance": done.tolerance,
            "left_out": list(saved.lost),
            "not_in_it": list(saved.notes),
            "notes": list(done.notes),
        },
        indent=2,
        ensure_ascii=False,
    )
