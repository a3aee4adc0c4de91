"""`anyrig diff`: in what two checkpoints differ; like diff, it prints the differences and exits with a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import bar, options, text
from anyrig.errors import EXIT_CHECK_FAILED

if TYPE_CHECKING:
    from anyrig.diagnose.diff import Diff, TensorChange, TensorSide
    from anyrig.diagnose.leaves import LeafChange

_SHOWN = 20
_CUT = 60
_BY_CHECKSUM = "tensors are equal by their recorded checksums (anyrig verify reads the data)"


@click.command("diff")
@click.argument("a")
@click.argument("b")
@options.as_json
@options.debug
def command(a: str, b: str, as_json: bool) -> int:
    """Compare two checkpoints: tensors, files, configuration, progress.

    A and B are run directories (their newest checkpoints), checkpoints, or files of any format that `anyrig inspect`
    knows; where two formats name their tensors differently, those with the same meaning are compared. Exits 0 when both
    hold the same state and 3 when not: tensors, files, configuration, and how far training had come. Bookkeeping (how
    and why it was saved, what only one says of the progress) and where it was made are told, and do not count. Tensors
    with equal recorded checksums are not read (`anyrig verify` reads all).
    """
    from anyrig.diagnose.diff import diff

    found = diff(a, b, watch=bar.reading)
    click.echo(_as_json(found) if as_json else _describe(found))
    return 0 if found.equal else EXIT_CHECK_FAILED


def _describe(found: Diff) -> str:
    counts = (
        f"{found.equal_tensors:,} tensors equal, {len(found.changed):,} differ, "
        f"{len(found.only_a):,} only in a, {len(found.only_b):,} only in b"
    )
    parts = [
        text.facts([("a", str(found.a)), ("b", str(found.b))]),
        f"equal: {found.equal_tensors:,} tensors, files, configuration, progress" if found.equal else counts,
        _BY_CHECKSUM if found.by_checksum else "",
        _changed(found.changed),
        _only("only in a", found.only_a),
        _only("only in b", found.only_b),
        _section("same tensors, other names", [f"{each.a} = {each.b}" for each in found.renamed if not each.by_bytes]),
        _section("same bytes, and names that do not tell", [f"{r.a} = {r.b}" for r in found.renamed if r.by_bytes]),
        _leaves("files", found.files),
        _leaves("configuration", found.config),
        _leaves("progress", found.progress),
        _leaves("bookkeeping (no part of the state)", found.bookkeeping),
        _leaves("where it was made (no part of the state)", found.record),
    ]
    return "\n\n".join(part for part in parts if part)


def _changed(changes: Sequence[TensorChange]) -> str:
    if not changes:
        return ""
    columns = ("differing", "max abs", "max rel", "not finite", "first")
    lines = text.table(("tensor", "dtype and shape", *columns), [_row(change) for change in changes[:_SHOWN]])
    return lines + _more(len(changes))


def _row(change: TensorChange) -> tuple[str, ...]:
    a, b = _spec(change.a), _spec(change.b)
    values = change.values
    spec = a if a == b else f"{a} -> {b}"
    if values is None:
        return (change.name, spec, "other shape" if change.a.shape != change.b.shape else "none", "", "", "", "")
    first = str(list(values.first)) if values.first else ""
    odd = text.number(values.not_finite) if values.not_finite else ""
    differing = f"{values.differing:,} of {values.elements:,}"
    return (change.name, spec, differing, text.number(values.max_abs), text.number(values.max_rel), odd, first)


def _spec(side: TensorSide) -> str:
    return f"{side.dtype} {text.shape(side.shape)}"


def _only(title: str, sides: Sequence[TensorSide]) -> str:
    return _section(title, [f"{side.name}  {_spec(side)}" for side in sides])


def _leaves(title: str, changes: Sequence[LeafChange]) -> str:
    return _section(title, [f"{change.where}: {_short(change.a)} -> {_short(change.b)}" for change in changes])


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines[:_SHOWN])]) + _more(len(lines)) if lines else ""


def _more(count: int) -> str:
    return f"\n  and {count - _SHOWN} more (--json lists all)" if count > _SHOWN else ""


def _short(value: Any) -> str:
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _CUT else shown[:_CUT] + "..."


def _as_json(found: Diff) -> str:
    import dataclasses
    import json

    return json.dumps({"equal": found.equal, **dataclasses.asdict(found)}, indent=2, ensure_ascii=False, default=str)
