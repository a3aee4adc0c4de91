"""One rule of a user's own, and the lines of YAML that say it; what rules do is in `anyrig.mapping.rules`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from anyrig.errors import UsageError
from anyrig.mapping.layout import STEPS, Step

_KEYS = ("from", "to", "axis", "layout", "drop", "keep")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `source` and `target` are patterns. A drop has no `target`, a keep no `source`.

    A `source` of several patterns is joined along `axis`.
    """

    source: str | tuple[str, ...] | None
    target: str | None
    layout: tuple[Step, ...] | None = None
    axis: int = -1

    @property
    def sources(self) -> tuple[str, ...]:
        """The patterns of stored names."""
        return (self.source,) if isinstance(self.source, str) else self.source or ()

    def __str__(self) -> str:
        if self.source is None:
            return f"keep: {self.target}"
        return f"{'drop' if self.target is None else 'from'}: {', '.join(self.sources)}"


def rule_of(path: str | os.PathLike[str], number: int, item: Any) -> Rule:
    """Return the rule that the `number`-th item of a rules file says. Raises ANY-MAP-002."""
    if not isinstance(item, dict) or not item:
        raise malformed(path, f"rule {number} is no mapping of texts")
    if unknown := [str(key) for key in item if key not in _KEYS]:
        near = difflib.get_close_matches(unknown[0], _KEYS, n=1)
        raise malformed(path, f"rule {number} has {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    keys, joins = set(item) - {"layout", "axis"}, isinstance(item.get("from"), list)
    texts = [*item["from"], item.get("to")] if joins else [item[key] for key in keys]
    if not all(isinstance(text, str) for text in texts) or type(item.get("axis", 0)) is not int:
        raise malformed(path, f"rule {number} is no mapping of texts")
    if keys == {"from", "to"} and (joins or "axis" not in item) and len(texts) > 1:
        steps = item.get("layout")
        source = tuple(item["from"]) if joins else item["from"]
        layout = None if steps is None else tuple(_steps(path, number, steps))
        return Rule(source, item["to"], layout, item.get("axis", -1))
    if keys not in ({"drop"}, {"keep"}) or item.keys() & {"layout", "axis"}:
        raise malformed(path, f"rule {number} has {', '.join(item)}: it takes from and to, or drop, or keep")
    return Rule(item.get("drop"), item.get("keep"))


def _steps(path: str | os.PathLike[str], number: int, steps: Any) -> Iterator[Step]:
    for step in steps if isinstance(steps, list) else [steps]:
        name, value = next(iter(step.items())) if isinstance(step, dict) and len(step) == 1 else (step, None)
        if name not in STEPS:
            raise malformed(path, f"rule {number} has the layout {step!r}; known are {', '.join(STEPS)}")
        yield Step(name, _tuples(value))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def plain(rule: Rule) -> dict[str, Any]:
    """Return a rule as the item of a rules file."""
    if rule.source is None:
        return {"keep": rule.target}
    if rule.target is None:
        return {"drop": rule.source}
    joins = {} if isinstance(rule.source, str) else {"axis": rule.axis}
    steps = [step.name if step.value is None else {step.name: _lists(step.value)} for step in rule.layout or ()]
    return {
        "from": _lists(rule.source),
        "to": rule.target,
        **joins,
        **({"layout": steps} if steps else {}),
    }


def literal(name: str) -> str:
    """Return the pattern that matches this one name."""
    return name.replace("*", "\\*")


def line(source: str | Iterable[str] | None, target: str | None, *layout: Step, axis: int = -1) -> str:
    """Return the line of a rules file that pairs, drops or keeps these very names, quoted where YAML asks for it."""
    several = [source] if isinstance(source, str) else source or ()
    sources = tuple(literal(name) for name in several)
    pattern = sources[0] if isinstance(source, str) else sources or None
    return f"- {_flow(Rule(pattern, None if target is None else literal(target), layout, axis))}"


def group_line(source: str | None, target: str | None) -> str:
    """Return the line of a rules file that pairs, drops or keeps all below two first parts of names."""
    have, want = (None if name is None else f"{literal(name)}/*" for name in (source, target))
    return f"- {_flow(Rule(have, want))}"


def _flow(rule: Rule) -> str:
    flow = yaml.safe_dump(plain(rule), sort_keys=False, allow_unicode=True, default_flow_style=True, width=float("inf"))
    return str(flow.strip())


def malformed(path: str | os.PathLike[str], what: str) -> UsageError:
    """Return the error for a file of rules that is none."""
    return UsageError(
        "ANY-MAP-002",
        f"{path} is no file of rules: {what}",
        hint="write `version: 1`, and under `rules:` lines such as `- {from: old/*, to: model/*}`",
    )
