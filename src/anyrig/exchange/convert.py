"""`anyrig.convert`: a model from one format to another, with the proof that it is the same model.

The source is opened and the target written beside its place (`save.py` reads it back and compares every array); then
the written file is run as its receiver will run it, on the same rows as the source. Only what agrees takes its place.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from anyrig.errors import UsageError
from anyrig.exchange.open import OpenedModel, open_with_report
from anyrig.exchange.proof import Proof
from anyrig.exchange.sample import sample_for
from anyrig.exchange.save import Saved, save_model, target_of
from anyrig.exchange.trust import Trust
from anyrig.mapping.rules import Rules
from anyrig.store.digest import hash_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was converted, and what is proved of it.

    `source_hash` has the xxh3-128 of each file of the source. All `saved.arrays` variables of the model are in the
    target bit by bit (0 where the format rewrites them: ONNX, LiteRT). `difference` is the largest one between the
    outputs of source and target on `sample`, and `tolerance` what was allowed; None where the outputs of the target
    cannot be had here, for the reason in `notes`.
    """

    source: Path
    source_format: str
    source_hash: Mapping[str, str]
    saved: Saved
    sample: str
    difference: float | None
    tolerance: float
    notes: tuple[str, ...]
    loaded: Any


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    trust: Trust = "known",
    into: Any = None,
    rules: Rules | str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    sample: Any = None,
    lossy: bool = False,
) -> Conversion:
    """Write what is at `source` to `target` in the format of its suffix (`save_model`), and prove it.

    `trust`, `into`, `rules` and `custom_objects` are those of `open_model`. `sample` has rows for the comparison of
    outputs, as `predict` takes them; without, 4 random rows are made for what the model declares. Formats that Keras
    itself runs give the same bytes; others may differ by 1e-5 of the largest output.

    Raises ANY-CONVERT-006 (the outputs differ; nothing was written), -007 (the source only predicts), -010 (the sample
    does not fit the model), -011 (the target is inside the source), and what `open_model` and `save_model` raise.
    """
    path = Path(os.path.realpath(os.path.expanduser(target)))
    target_of(path)  # a name without a format is refused before anything is opened
    opened = open_with_report(source, trust=trust, into=into, rules=rules, custom_objects=custom_objects)
    if not isinstance(opened.model, keras.Model):
        raise UsageError(
            "ANY-CONVERT-007",
            f"{source} only predicts: its layers are not in the file, so no model can be written",
            hint="give a function that builds the model, into= or --into FILE.py:FUNCTION",
        )
    if Path(os.path.realpath(os.path.expanduser(source))) in path.parents:
        raise UsageError(
            "ANY-CONVERT-011",
            f"{path} is inside {source}, which it is made of",
            hint="give a place outside of it",
        )
    hashes = _hashes(opened)  # now: the target may be the source
    rows, words = sample_for(opened.model, sample)
    proof = Proof(opened.model, rows)
    saved = save_model(opened.model, path, lossy=lossy, check=proof.check)
    return Conversion(
        source=opened.contents.path,
        source_format=opened.contents.format,
        source_hash=hashes,
        saved=saved,
        sample=words,
        difference=proof.difference,
        tolerance=proof.tolerance,
        notes=(*opened.notes, *proof.notes),
        loaded=opened.report,
    )


def _hashes(opened: OpenedModel) -> dict[str, str]:
    """Return the hash of each file of the source; an archive is one file."""
    path = opened.contents.path
    if zipfile.is_zipfile(path):
        return {path.name: hash_file(path)}
    folder = path if path.is_dir() else path.parent
    return {name: hash_file(folder / name) for name, _ in opened.contents.files}
