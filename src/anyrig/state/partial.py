"""What of a checkpoint may be left out, or wanted in vain, because the caller said so. Pure: names, shapes and types.

Slots go by variable and slot name. Between optimizers of different classes nothing is carried over but the averages of
weights: SGD's momentum and Adam's share a name, and the one is a sum of steps, the other a mean of gradients; and a
count of updates without the slots that go with it would make Adam's first steps several times too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anyrig.errors import AnyrigError
from anyrig.state.choice import Choice
from anyrig.state.compare import ALLOW_OPTIMIZER, Spec

NO_SUCH = "the model has no such variable"
# Of one kind: the same slots with the same meaning.
_ALIKE = ({"Adam", "AdamW"},)


@dataclass(slots=True)
class Excused:
    """Stored tensors that may stay unused and wanted ones that may stay as they are, each with the reason."""

    ignored: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)


def excused(
    choice: Choice,
    stored: Sequence[Spec],
    wanted: Sequence[Spec],
    classes: tuple[Mapping[str, str], Mapping[str, str]],
) -> Excused:
    """Return what `choice` excuses; `classes` are those of the checkpoint's and the model's optimizers by key.

    Raises ANY-STATE-017 if an optimizer is of another class and all of it was asked for.
    """
    result = Excused()
    have, want = {spec.name: spec for spec in stored}, {spec.name: spec for spec in wanted}
    if "optimizer" in choice.groups:
        for key, (old, new) in _changed(*classes).items():
            why = f"the checkpoint's optimizer is {old}, the model's {new}"
            unused = {name: why for name in have if name.startswith(f"optimizer/{key}/")}
            if unused:
                _refuse_other_class(choice, key, old, new)
            result.ignored |= unused
            result.started |= {name: why for name in want if name.startswith(f"optimizer/{key}/")}
    for name in have.keys() | want.keys():
        slot = choice.slots == "partial" and name.startswith(("optimizer/", "ema/"))
        if name in result.ignored or name in result.started or (choice.strict and not slot):
            continue
        if name not in want:
            result.ignored[name] = NO_SUCH
        elif name not in have:
            result.started[name] = "not stored"
        elif slot and have[name].shape != want[name].shape:
            why = f"stored with shape {list(have[name].shape or ())}, wanted with {list(want[name].shape or ())}"
            result.ignored[name] = result.started[name] = why
    return result


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    both = {key: (old[key], new[key]) for key in old.keys() & new.keys()}
    return {key: pair for key, pair in both.items() if len(set(pair)) > 1 and not any(set(pair) <= a for a in _ALIKE)}


def _refuse_other_class(choice: Choice, key: str, old: str, new: str) -> None:
    if choice.slots != "partial":
        raise AnyrigError(
            "ANY-STATE-017",
            f"the checkpoint's optimizer {key} is {old}, the model's is {new}, whose slots mean something else; "
            "nothing was changed",
            hint='compile with the stored optimizer, or begin anew with this one: slots="partial" lists what is '
            f"not kept (in a run: {ALLOW_OPTIMIZER}), optimizer=False takes no optimizer at all",
        )
