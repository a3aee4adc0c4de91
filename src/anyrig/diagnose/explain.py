"""Why a file does not load into a model, in order of weight, with what to do; pure, and without any framework.

`CAUSES` is the catalogue: docs/explain.md has an entry for each, and a test compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from anyrig.formats.contents import Contents
from anyrig.mapping.propose import propose
from anyrig.mapping.result import Ambiguous, Misfit, Pair, Stored
from anyrig.mapping.result import Mapping as Names
from anyrig.state.wanted import Wanted

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Cause:
    """What may be wrong. `stops` if nothing is loaded because of it; else it is only told."""

    title: str
    likely: str
    stops: bool = True


CAUSES: Mapping[str, Cause] = {
    "no-weights": Cause(
        "The file has no weights",
        "it holds an optimizer's state or counters only: the weights are in another file, saved beside it",
    ),
    "another-model": Cause(
        "It is another model",
        "hardly a shape is the same on both sides: the file is of another architecture, or of another size of it",
    ),
    "head-size": Cause(
        "A layer has another number of outputs",
        "the model was trained for another number of classes: its last layer is made anew for yours",
    ),
    "vocabulary-size": Cause(
        "An embedding has another number of rows",
        "it was trained with another vocabulary: rows have to be matched word by word, or learned anew",
    ),
    "gru-reset-after": Cause(
        "A GRU was made with the other reset_after",
        "its default was changed from False to True in TensorFlow 2: build yours with the value that the file has",
    ),
    "other-shape": Cause(
        "A weight has another shape",
        "the layer was built for another number of inputs or units, or its axes are in an order that is not known",
    ),
    "order-alone": Cause(
        "Layers of the same shape, and names that do not tell them apart",
        "their names come from counters, so only the order in which they were made would decide, and it may be another",
    ),
    "renamed": Cause(
        "A layer was renamed, or is another one",
        "name and place differ by somebody's choice, the shape is the same: you know whether it is the same layer",
    ),
    "turned-or-not": Cause(
        "A square kernel may be turned or not",
        "other libraries keep (out, in), Keras (in, out), and a square does not show which it is",
    ),
    "missing": Cause(
        "The model has weights that the file does not hold",
        "the model has grown since, or a part of it was saved elsewhere; or the file is not complete",
    ),
    "extra": Cause(
        "The file holds weights that the model does not have",
        "the file is of a larger model (with a head, an auxiliary output, a second tower), of which yours is a part",
    ),
    "names": Cause("Names differ, and are clear", "each pair has only one possible counterpart", stops=False),
    "layout": Cause("Kernels are laid out otherwise", "another library wrote them; turned while loading", stops=False),
    "partitions": Cause(
        "Variables are cut into parts", "they were sharded in training; joined in loading", stops=False
    ),
    "other-type": Cause("Numbers are of another type", "another precision; cast while loading", stops=False),
}
_ORDER = list(CAUSES)


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with its evidence, a line each, and what to type or write into a file of rules."""

    cause: str
    evidence: tuple[str, ...]
    repair: tuple[str, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether nothing is loaded because of it."""
        return CAUSES[self.cause].stops


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was found, the heaviest first, and the mapping that is behind it."""

    findings: tuple[Finding, ...]
    mapping: Names
    wanted: int

    @property
    def loads(self) -> bool:
        """Whether all is decided."""
        return not any(finding.stops for finding in self.findings)


def explain(contents: Contents, wanted: Sequence[Wanted]) -> Explanation:
    """Return why the weights of a file do or do not fill the variables `wanted` (their weights; no optimizer)."""
    weights = [want for want in wanted if want.role == "weight"]
    tensors = [tensor for tensor in contents.tensors if tensor.role == "weight"]
    mapping = propose(tensors, weights, ordered=contents.format in ("keras-h5", "keras-h5-weights"))
    found = sorted(_findings(mapping, weights, len(tensors)), key=lambda finding: _ORDER.index(finding.cause))
    return Explanation(tuple(found), mapping, len(weights))


def _findings(mapping: Names, weights: Sequence[Wanted], stored: int) -> Iterator[Finding]:
    if not stored:
        yield Finding("no-weights", ("no tensor of the file is a weight",))
        return
    shared = _shared_shapes(mapping, weights)
    if shared < 0.5 and len(mapping.pairs) < len(weights) / 2:
        yield Finding("another-model", (f"{shared:.0%} of the model's {len(weights)} shapes are in the file",))
    for cause in dict.fromkeys(item.cause for item in mapping.misfits):
        yield _misfits(cause, [item for item in mapping.misfits if item.cause == cause])
    yield from (_ambiguous(item) for item in mapping.ambiguous)
    if mapping.missing:
        rules = tuple(f"- {{keep: {want.name}}}" for want in mapping.missing[:_SHOWN])
        yield Finding("missing", _some([_want(want) for want in mapping.missing]), rules)
    if mapping.unused:
        rules = tuple(f"- {{drop: {item.name}}}" for item in mapping.unused[:_SHOWN])
        yield Finding("extra", _some([_have(item) for item in mapping.unused]), rules)
    yield from _told(mapping.pairs)


def _shared_shapes(mapping: Names, weights: Sequence[Wanted]) -> float:
    have = [pair.stored for pair in mapping.pairs] + [item.stored for item in mapping.misfits] + list(mapping.unused)
    have += [item for each in mapping.ambiguous for item in each.stored]
    shapes = Counter(tuple(sorted(item.shape)) for item in have)
    common = Counter(tuple(sorted(want.shape)) for want in weights) & shapes
    return common.total() / max(1, len(weights))


def _misfits(cause: str, items: Sequence[Misfit]) -> Finding:
    evidence = [f"{item.stored.name} -> {item.wanted.name}: {item.why}" for item in items]
    rules = [rule for item in items for rule in (f"- {{drop: {item.stored.name}}}", f"- {{keep: {item.wanted.name}}}")]
    return Finding(cause, _some(evidence), () if cause == "gru-reset-after" else tuple(rules[: 2 * _SHOWN]))


def _ambiguous(item: Ambiguous) -> Finding:
    evidence = (
        "in the file: " + ", ".join(map(_have, item.stored[:_SHOWN])),
        "in the model: " + ", ".join(map(_want, item.wanted[:_SHOWN])),
        item.why,
    )
    choices = [
        f"- {{from: {have.name}, to: {want.name}}}" for have in item.stored[:_SHOWN] for want in item.wanted[:_SHOWN]
    ]
    if "turned and as it is" in item.why:
        return Finding("turned-or-not", evidence, (choices[0][:-1] + ", layout: [transpose]}", f"or {choices[0]}"))
    cause = "renamed" if len(item.stored) == len(item.wanted) == 1 else "order-alone"
    return Finding(cause, evidence, tuple(choices[:_SHOWN]))


def _told(pairs: Sequence[Pair]) -> Iterator[Finding]:
    by_rule: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.stored.name != pair.wanted.name and pair.rule not in ("alias", "path"):
            by_rule.setdefault(pair.why, []).append(pair)
    for why, some in by_rule.items():
        yield Finding("names", (f"{len(some)}: {why}", *_some([_pair(pair) for pair in some], 3)))
    if turned := [pair for pair in pairs if pair.steps]:
        lines = [f"{_pair(pair)}: {', '.join(map(str, pair.steps))}" for pair in turned]
        yield Finding("layout", _some(lines, 3))
    if joined := [pair for pair in pairs if len(pair.stored.tensors) > 1]:
        lines = [
            f"{pair.stored.name}: {len(pair.stored.tensors)} parts along axis {pair.stored.axis}" for pair in joined
        ]
        yield Finding("partitions", _some(lines, 3))
    if cast := Counter((pair.stored.dtype, pair.wanted.dtype) for pair in pairs if pair.cast):
        yield Finding("other-type", tuple(f"{count} from {old} to {new}" for (old, new), count in cast.items()))


def _some(lines: Sequence[str], shown: int = _SHOWN) -> tuple[str, ...]:
    return (*lines[:shown], *([f"... and {len(lines) - shown} more"] if len(lines) > shown else []))


def _pair(pair: Pair) -> str:
    return f"{pair.stored.name} -> {pair.wanted.name}"


def _have(item: Stored) -> str:
    return f"{item.name} {list(item.shape)}"


def _want(want: Wanted) -> str:
    return f"{want.name} {list(want.shape)}"
