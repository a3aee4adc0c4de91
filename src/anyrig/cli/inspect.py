"""`anyrig inspect`: what a run, a checkpoint or a file of another format holds; never imports TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import bar, options, text
from anyrig.errors import UsageError
from anyrig.report import words
from anyrig.sizes import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyrig.diagnose.inspect import Inspection
    from anyrig.formats.contents import TensorSignature


@click.command("inspect")
@click.argument("path")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--stats", is_flag=True, help="List every tensor with min, max, mean, norm, zeros, NaN and inf.")
@click.option("--digest", is_flag=True, help="Print the digests only; the last line is the state digest alone.")
@options.as_json
@options.debug
def command(path: str, tensors: bool, stats: bool, digest: bool, as_json: bool) -> None:
    """Show what a checkpoint or a model file holds, without TensorFlow.

    PATH is a run directory (its newest checkpoint is shown), a checkpoint, or a file or folder of another format:
    Keras (.keras, .h5, .weights.h5), TensorFlow checkpoints (any of their files, or their prefix) and SavedModels,
    safetensors, .npz, ONNX, TFLite, Orbax. The content decides, not the suffix. With --stats every tensor is read; min,
    max, mean and norm are those of its finite numbers (of complex ones their magnitudes).
    """
    from anyrig.diagnose.inspect import inspect

    found = inspect(path, tensors=tensors, stats=stats, watch=bar.reading)
    if as_json:
        click.echo(_as_json(found))
    elif digest:
        _echo_digests(found)
    else:
        click.echo(_describe(found))


def _echo_digests(found: Inspection) -> None:
    if found.state_digest is None:
        raise UsageError(
            "ANY-CLI-001",
            f"{found.path} is {found.words}, and records no digest",
            hint="give a run or a checkpoint folder",
        )
    click.echo(f"model digest\n{found.model_digest}\nstate digest\n{found.state_digest}")


def _describe(found: Inspection) -> str:
    parts = [text.facts(_facts(found)), _groups(found), _files(found)]
    if found.tensors:
        parts.append(_tensors(found) if found.tensors[0].stats is None else _stats(found))
    return "\n\n".join(parts)


def _facts(found: Inspection) -> list[tuple[str, str]]:
    facts = [("path", str(found.path)), *_of_other_format(found)]
    if found.kind == "run":
        facts.append(("checkpoints", f"{len(found.steps)}, newest {found.checkpoint}"))
    if found.step is not None:
        facts.append(("step", text.step(found.step, found.progress)))
    if found.progress:
        facts.append(("progress", _progress(found.progress)))
    facts.append(("parameters", f"{found.parameters:,}"))
    facts.append(("state", f"{sum(group.tensors for group in found.groups):,} tensors, {size(found.nbytes)}"))
    facts += [(key, str(value)) for key, value in _made_with(found.record)]
    if found.state_digest is not None:
        facts += [("model digest", str(found.model_digest)), ("state digest", found.state_digest)]
    return facts


def _of_other_format(found: Inspection) -> list[tuple[str, str]]:
    """Return what only files of other formats say; what they do not say has no line."""
    signatures = [f"{each.name}({_signed(each.inputs)}) -> {_signed(each.outputs)}" for each in found.signatures]
    facts = [
        ("what it is", found.words),
        ("written by", ", ".join(f"{program} {version}" for program, version in found.written_by.items())),
        ("read by", found.read_by),
        ("model", found.architecture),
        ("inputs", _signed(found.inputs)),
        ("precision", found.precision),
        ("optimizer", found.optimizer),
        *(("signature", signature) for signature in signatures),
        *(("note", note) for note in found.notes),
    ]
    return [(label, said) for label, said in facts if said]


def _signed(tensors: Sequence[TensorSignature]) -> str:
    def sizes(shape: Sequence[int | None] | None) -> str:
        return "any shape" if shape is None else " x ".join("?" if size is None else str(size) for size in shape)

    return ", ".join(f"{each.name}: {each.dtype} {sizes(each.shape)}".strip() for each in tensors)


def _progress(progress: dict[str, Any]) -> str:
    """Return numbers, texts and metrics of the progress, and the names of what else is there."""
    metrics = progress.get("metrics")
    plain = {key: value for key, value in progress.items() if value is None or isinstance(value, str | int | float)}
    shown = words.values(plain | (metrics if isinstance(metrics, dict) else {}))
    others = ", ".join(key for key in progress if key not in plain and key != "metrics")
    return "; ".join(filter(None, [shown, others and f"also {others} (--json shows them)"]))


def _made_with(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return versions and processor, where the record has them."""
    environment = record.get("environment")
    if not isinstance(environment, dict):
        return []
    names = ("anyrig", "tensorflow", "keras", "python")
    versions = ", ".join(f"{name} {environment[name]}" for name in names if environment.get(name))
    return [("made with", versions)] if versions else []


def _groups(found: Inspection) -> str:
    rows = [(group.group, f"{group.tensors:,}", f"{group.elements:,}", size(group.nbytes)) for group in found.groups]
    return text.table(("group", "tensors", "elements", "size"), rows, frozenset({"tensors", "elements", "size"}))


def _files(found: Inspection) -> str:
    rows = [(name, size(count)) for name, count in found.files]
    return text.table(("file", "size"), rows, frozenset({"size"}))


def _tensors(found: Inspection) -> str:
    rows = [(line.name, line.dtype, text.shape(line.shape), size(line.nbytes), line.file) for line in found.tensors]
    return text.table(("tensor", "dtype", "shape", "size", "file"), rows, frozenset({"size"}))


def _stats(found: Inspection) -> str:
    columns = ("min", "max", "mean", "norm", "zeros", "nan", "inf")
    rows = [
        (
            line.name,
            line.dtype,
            text.shape(line.shape),
            *(text.number(getattr(line.stats, name, None)) for name in columns),
        )
        for line in found.tensors
    ]
    return text.table(("tensor", "dtype", "shape", *columns), rows, frozenset(columns))


def _as_json(found: Inspection) -> str:
    import dataclasses
    import json

    return json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False, default=str)
