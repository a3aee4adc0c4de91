"""Why a file does not load into a model, in order of weight, with what to do; pure, and without any framework."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from anyrig.diagnose.causes import CAUSES
from anyrig.diagnose.parts import Parted, parted
from anyrig.formats.contents import Contents
from anyrig.mapping.layout import Step
from anyrig.mapping.propose import propose
from anyrig.mapping.result import Ambiguous, Misfit, Pair, Stored
from anyrig.mapping.result import Mapping as Names
from anyrig.mapping.rule import group_line, line
from anyrig.mapping.slots import is_training_state, slot_of
from anyrig.state.wanted import Wanted
from anyrig.store.dtypes import ITEM_BYTES

_SHOWN = 6
_LAYER_SHOWN = 4  # variables of layers in question
_OF_THE_FORMAT = ("alias", "path", "place", "object", "same file", "name and place")  # no renaming
_SUFFIXES = {
    ".keras": ("keras", "keras-2"),
    ".h5": ("keras-h5", "keras-h5-weights", "keras-weights", "hdf5"),
    ".hdf5": ("keras-h5", "keras-h5-weights", "keras-weights", "hdf5"),
    ".safetensors": ("safetensors",),
    ".npz": ("npz",),
    ".onnx": ("onnx",),
    ".tflite": ("tflite",),
}
_ORDER = list(CAUSES)
_ORDERED = ("keras", "keras-2", "keras-weights", "keras-h5", "keras-h5-weights")
_SAME_CODE = "or, if the very code that wrote the file builds the model: `same_code: true` in place of `rules:`"


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


def explain(contents: Contents, wanted: Sequence[Wanted], mapping: Names | None = None) -> Explanation:
    """Return why the weights of a file do or do not fill the variables `wanted` (their weights; no optimizer).

    `mapping` is what opening would do, where that is known; without it names and shapes are compared.
    """
    weights = [want for want in wanted if want.role == "weight"]
    if mapping is None:
        tensors = [tensor for tensor in contents.tensors if tensor.role != "optimizer"]
        mapping = propose(tensors, weights, ordered=contents.format in ("keras-h5", "keras-h5-weights"))
    found = [*_findings(mapping, weights, contents), *_beside(contents, mapping)]
    found.sort(key=lambda finding: _ORDER.index(finding.cause))
    return Explanation(tuple(found), mapping, len(weights))


def _findings(mapping: Names, weights: Sequence[Wanted], contents: Contents) -> Iterator[Finding]:
    unused = [item for item in mapping.unused if not _is_training(item)]
    if weights and not (mapping.pairs or mapping.misfits or mapping.ambiguous or unused):
        yield Finding("no-weights", ("no tensor of the file is a weight",))
        return
    special = parted(mapping, unused)
    shared = _shared_shapes(mapping, weights)
    another = not special and shared < 0.5 and len(mapping.pairs) < len(weights) / 2
    if another:
        yield Finding("another-model", (f"{shared:.0%} of the model's {len(weights)} shapes are in the file",))
    for each in special:
        yield Finding(each.cause, each.evidence, each.rules)
    for cause in dict.fromkeys(item.cause for item in mapping.misfits):
        yield _misfits(cause, [item for item in mapping.misfits if item.cause == cause])
    ordered = contents.format in _ORDERED
    unclear = [item for item in mapping.ambiguous if not _told_already(item, special)]
    yield from (_ambiguous(group, _whole_layers(group, mapping), ordered) for group in _by_layers(unclear))
    settled = {name for each in special for name in (*each.wanted, *each.stored)}
    yield from _left(
        [want for want in mapping.missing if want.name not in settled],
        [item for item in unused if item.name not in settled],
        another,
    )
    yield from _told(mapping.pairs)


def _left(missing: Sequence[Wanted], unused: Sequence[Stored], another: bool) -> Iterator[Finding]:
    """What is on one side only; for another model no rules, which would keep all of it as it is."""
    if missing:
        rules = () if another else tuple(line(None, want.name) for want in missing[:_SHOWN])
        yield Finding("missing", _some([_want(want) for want in missing]), rules)
    if unused:
        rules = () if another else tuple(line(item.name, None) for item in unused[:_SHOWN])
        yield Finding("extra", _some([_have(item) for item in unused]), rules)


def _told_already(item: Ambiguous, special: Iterable[Parted]) -> bool:
    return any({want.name for want in item.wanted} <= set(each.wanted) for each in special)


def _is_training(item: Stored) -> bool:
    """Tell whether a tensor is the state of training, as opening does: a slot counts without its weight too."""
    return is_training_state(item, {item.name, item.name.rpartition("/")[0]})


def _beside(contents: Contents, mapping: Names) -> Iterator[Finding]:
    """What the file holds beside weights, and whether its name tells the truth."""
    training = {t.name for t in contents.tensors if t.role == "optimizer"}
    training |= {item.name for item in mapping.unused if _is_training(item)}
    paired = {pair.stored.name: pair.wanted.name for pair in mapping.pairs}
    averages = {
        name: slot[0]
        for name in sorted(training)
        if (slot := slot_of(name, paired.keys())) and slot[1].lower() in ("exponentialmovingaverage", "ema")
    }
    if averages:
        rules = [line(name, paired[of]) for name, of in averages.items()]
        rules += [line(of, None) for of in averages.values()]
        yield Finding("averages", _some([f"{name}, of {of}" for name, of in averages.items()]), tuple(rules))
    if state := sorted(training - averages.keys()):
        yield Finding("optimizer", _some(state, 3))
    suffix = contents.path.suffix
    if suffix in _SUFFIXES and contents.path.is_file() and contents.format not in _SUFFIXES[suffix]:
        right = next((name for name, formats in _SUFFIXES.items() if contents.format in formats), None)
        repair = (shlex.join(["mv", str(contents.path), str(contents.path.with_suffix(right))]),) if right else ()
        yield Finding("suffix", (f"{contents.path.name} is {contents.words}",), repair)


def _shared_shapes(mapping: Names, weights: Sequence[Wanted]) -> float:
    have = [pair.stored for pair in mapping.pairs] + [item.stored for item in mapping.misfits] + list(mapping.unused)
    have += [item for each in mapping.ambiguous for item in each.stored]
    shapes = Counter(tuple(sorted(item.shape)) for item in have)
    common = Counter(tuple(sorted(want.shape)) for want in weights) & shapes
    return common.total() / max(1, len(weights))


def _misfits(cause: str, items: Sequence[Misfit]) -> Finding:
    evidence = [f"{item.stored.name} -> {item.wanted.name}: {item.why}" for item in items]
    rules = [rule for item in items for rule in (line(item.stored.name, None), line(None, item.wanted.name))]
    return Finding(cause, _some(evidence), () if cause == "gru-reset-after" else tuple(rules[: 2 * _SHOWN]))


def _by_layers(items: Iterable[Ambiguous]) -> list[list[Ambiguous]]:
    """Put together the variables of which the same layers are in question, for the same reason."""
    groups: dict[Any, list[Ambiguous]] = {}
    for item in items:
        alone = item.stored[0].name if "turned and as it is" in item.why else ""
        groups.setdefault((item.why, alone, *_layers(item)), []).append(item)
    return list(groups.values())


def _layers(item: Ambiguous) -> tuple[tuple[str, ...], tuple[str, ...]]:
    have, want = ([each.name.rpartition("/")[0] for each in side] for side in (item.stored, item.wanted))
    return tuple(have), tuple(want)


def _whole_layers(group: Sequence[Ambiguous], mapping: Names) -> bool:
    """Tell whether rules may speak of whole layers: their variables are called alike, and nothing else is in them."""
    have, want = _layers(group[0])
    names = [[*(each.name for each in item.stored), *(each.name for each in item.wanted)] for item in group]
    leaves = [{name.rpartition("/")[2] for name in of_item} for of_item in names]
    here = {each.name for item in group for each in item.stored}
    known = [*(pair.stored for pair in mapping.pairs), *mapping.unused, *(item.stored for item in mapping.misfits)]
    known += [each for item in mapping.ambiguous for each in item.stored]
    others = [each.name for each in known if each.name not in here]
    return (
        len(group) > 1
        and all((*have, *want))
        and all(len(called) == 1 for called in leaves)
        and not any(name.startswith(tuple(f"{layer}/" for layer in have)) for name in others)
    )


def _ambiguous(group: Sequence[Ambiguous], whole: bool, ordered: bool) -> Finding:
    """Return the finding for the variables of some layers, with a rule for each choice."""
    item = group[0]
    if "turned and as it is" in item.why:
        turned = line(item.stored[0].name, item.wanted[0].name, Step("transpose"))
        return Finding(
            "turned-or-not", _evidence(item), (turned, f"or {line(item.stored[0].name, item.wanted[0].name)}")
        )
    have, want = ([each.name for each in side] for side in (item.stored, item.wanted))
    pair_line = group_line if whole else line
    sides = [(tuple(e.name for e in each.stored), tuple(e.name for e in each.wanted)) for each in group]
    sides = [_layers(item)] if whole else sides
    choices = [rule for have, want in sides for rule in _choices(have, want, pair_line)]
    evidence = tuple(text for each in group[:_LAYER_SHOWN] for text in _evidence(each)[:2])
    evidence += (f"and {len(group) - _LAYER_SHOWN} more variables",) if len(group) > _LAYER_SHOWN else ()
    if len(have) == len(want) == 1:
        others = [rule for (have,), (want,) in sides for rule in (pair_line(have, None), pair_line(None, want))]
        choices = [*choices, f"# if it is another one: {', '.join(others)}"]
        return Finding("renamed", (*evidence, item.why), tuple(choices))
    return Finding("order-alone", (*evidence, item.why), (*choices, *((_SAME_CODE,) if ordered else ())))


def _choices(have: Sequence[str], want: Sequence[str], pair_line: Callable[[str, str], str]) -> list[str]:
    """Return the rule for each way to pair two names with two, of more the one in order."""
    if len(have) == len(want) and len(have) > 2:
        lines = [pair_line(*pair) for pair in zip(have, want, strict=True)]
        return [*lines[:_SHOWN], "one for each, in the order that is right, not necessarily this one"]
    return [pair_line(one, other) for one in have for other in want][:_SHOWN]


def _evidence(item: Ambiguous) -> tuple[str, ...]:
    return (
        "in the file: " + ", ".join(map(_have, item.stored[:_SHOWN])),
        "in the model: " + ", ".join(map(_want, item.wanted[:_SHOWN])),
        item.why,
    )


def _told(pairs: Sequence[Pair]) -> Iterator[Finding]:
    by_rule: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.stored.name != pair.wanted.name and pair.rule not in _OF_THE_FORMAT:
            by_rule.setdefault(pair.why, []).append(pair)
    for why, some in by_rule.items():
        yield Finding("names", (f"{len(some)}: {why}", *_some([_pair(pair) for pair in some], 3)))
    for cause, some in _laid_out(pairs):
        yield Finding(cause, _some([f"{_pair(pair)}: {', '.join(map(str, pair.steps))}" for pair in some], 3))
    if joined := [pair for pair in pairs if len(pair.stored.tensors) > 1]:
        lines = [
            f"{pair.stored.name}: {len(pair.stored.tensors)} parts along axis {pair.stored.axis}" for pair in joined
        ]
        yield Finding("partitions", _some(lines, 3))
    if unknown := [pair for pair in pairs if pair.stored.dtype not in ITEM_BYTES]:
        yield Finding("unknown-type", _some([f"{_have(pair.stored)}: {pair.stored.dtype}" for pair in unknown]))
    if cast := Counter((pair.stored.dtype, pair.wanted.dtype) for pair in pairs if _casts(pair)):
        yield Finding("other-type", tuple(f"{count} from {old} to {new}" for (old, new), count in cast.items()))


def _laid_out(pairs: Sequence[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    cudnn = {p.wanted.layer for p in pairs if any(step.name == "cudnn_input_kernel" for step in p.steps)}
    for cause, inside in (("layout", False), ("cudnn", True)):
        if some := [pair for pair in pairs if pair.steps and (pair.wanted.layer in cudnn) is inside]:
            yield cause, some


def _casts(pair: Pair) -> bool:
    return pair.cast and pair.stored.dtype in ITEM_BYTES


def _some(lines: Sequence[str], shown: int = _SHOWN) -> tuple[str, ...]:
    return (*lines[:shown], *([f"... and {len(lines) - shown} more"] if len(lines) > shown else []))


def _pair(pair: Pair) -> str:
    return f"{pair.stored.name} -> {pair.wanted.name}"


def _have(item: Stored) -> str:
    return f"{item.name} {list(item.shape)}"


def _want(want: Wanted) -> str:
    return f"{want.name} {list(want.shape)}"
