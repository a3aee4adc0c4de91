"""A user's own rules for which stored tensor fills which variable, in a YAML file; they come before any proposal.

    version: 1
    rules:
      - {from: module/*/weight, to: model/*/kernel, layout: [transpose]}
      - {drop: teacher/*}           # stored, and not wanted
      - {keep: model/head/*}        # wanted, and left at the model's own value

`from` and `drop` are names (or further names) of the file's tensors, `to` and `keep` of the model's variables. A `*`
stands for any text of one or more characters, in `to` for the same as in `from`, in order. `layout` are steps of
`anyrig.mapping.layout`, a name or `{name: value}`; without it the one layout that fits is taken.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from anyrig.errors import UsageError
from anyrig.formats.contents import FileTensor
from anyrig.mapping.fit import fitted
from anyrig.mapping.layout import STEPS, Step
from anyrig.mapping.propose import propose
from anyrig.mapping.result import Mapping, Pair, Stored
from anyrig.mapping.sides import stored_side
from anyrig.state.wanted import Wanted

_STAR = re.compile(r"(?<!\\)\*")
_KEYS = ("from", "to", "layout", "drop", "keep")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `source` and `target` are patterns. A drop has no `target`, a keep no `source`."""

    source: str | None
    target: str | None
    layout: tuple[Step, ...] | None = None

    def __str__(self) -> str:
        if self.source is None or self.target is None:
            return f"drop: {self.source}" if self.target is None else f"keep: {self.target}"
        return f"from: {self.source}"


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in their order; `origin` is the file that they are from, for messages."""

    rules: tuple[Rule, ...]
    origin: str = "the rules"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rules:
        """Return the rules in a file. Raises ANY-MAP-002 for a file that has none, or other keys."""
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise _malformed(path, str(error).replace("\n", " ")) from error
        if not isinstance(data, dict) or data.get("version") != 1 or not isinstance(data.get("rules"), list):
            raise _malformed(path, "expected `version: 1` and a list `rules`")
        return cls(tuple(_rule(path, number, item) for number, item in enumerate(data["rules"], 1)), str(path))

    @classmethod
    def of(cls, mapping: Mapping) -> Rules:
        """Return rules that give the pairs of a mapping again, and leave what it leaves."""
        pairs = [Rule(_literal(pair.stored.name), _literal(pair.wanted.name), pair.steps) for pair in mapping.pairs]
        drops = [Rule(_literal(item.name), None) for item in mapping.dropped]
        return cls((*pairs, *drops, *(Rule(None, _literal(want.name)) for want in mapping.kept)))

    def text(self) -> str:
        """Return them as the YAML of a rules file."""
        plain = {"version": 1, "rules": [_plain(rule) for rule in self.rules]}
        return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))

    def apply(self, tensors: Iterable[FileTensor], wanted: Iterable[Wanted]) -> Mapping:
        """Return the mapping that these rules give, and for all that they do not name the one that is proposed.

        Raises ANY-MAP-003 (a rule that nothing matches), -004 (it leads to no variable), -005 (two tensors for one
        variable), -006 (no one layout fits).
        """
        stored, wants = stored_side(tensors), list(wanted)
        pairs: dict[str, Pair] = {}
        dropped: list[Stored] = []
        kept: list[Wanted] = []
        for number, rule in enumerate(self.rules, 1):
            if rule.source is None:
                kept += self._some([want for want in wants if _matches(rule.target or "", want)], number)
            elif rule.target is None:
                dropped += self._some([item for item in stored if _matches(rule.source, item)], number)
            else:
                for pair in self._some(list(self._pairs(rule, number, stored, wants)), number):
                    self._refuse_second(pair, pairs, number)
                    pairs[pair.wanted.name] = pair
        used = {pair.stored.name for pair in pairs.values()} | {item.name for item in dropped}
        filled = pairs.keys() | {want.name for want in kept}
        rest = propose(
            [item for item in stored if item.name not in used and item.tensors[0].role == "weight"],
            [want for want in wants if want.name not in filled],
        )
        return replace(
            rest, pairs=(*pairs.values(), *rest.pairs), kept=(*rest.kept, *kept), dropped=(*rest.dropped, *dropped)
        )

    def _pairs(self, rule: Rule, number: int, stored: Sequence[Stored], wants: Sequence[Wanted]) -> Iterator[Pair]:
        known = {name: want for want in wants for name in (*want.aliases, want.name)}
        pattern = _pattern(rule.source)
        for item in stored:
            found = next((m for name in (item.name, *item.aliases) if (m := pattern.fullmatch(name))), None)
            if found is None:
                continue
            texts = iter(found.groups())
            parts = [part.replace("\\*", "*") for part in _STAR.split(rule.target or "")]
            name = parts[0] + "".join(next(texts, "*") + part for part in parts[1:])
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise UsageError(
                    "ANY-MAP-004",
                    self._at(number, f"{item.name} becomes {name}, and the model has no such variable"),
                    hint=f"did you mean {near[0]}?" if near else "see its names: anyrig explain FILE MODEL",
                )
            yield self._pair(rule, number, item, known[name])

    def _pair(self, rule: Rule, number: int, item: Stored, want: Wanted) -> Pair:
        why = f"rule {number} of {self.origin}"
        if rule.layout is not None:
            return Pair(item, want, "rule", why, 1.0, rule.layout)
        if item.shape == want.shape:
            return Pair(item, want, "rule", why, 1.0)
        found = fitted(item, want)
        if len(found.ways) != 1:
            raise UsageError(
                "ANY-MAP-006",
                self._at(
                    number,
                    f"{item.name} {list(item.shape)} does not fit {want.name} {list(want.shape)} in one known way",
                ),
                hint=f"add layout: with some of {', '.join(STEPS)}",
            )
        return Pair(found.stored, want, "rule", why, 1.0, found.ways[0])

    def _some(self, found: list[Any], number: int) -> list[Any]:
        if not found:
            what = self.rules[number - 1]
            raise UsageError(
                "ANY-MAP-003",
                self._at(number, f"`{what}` matches nothing"),
                hint="see the names: anyrig inspect --tensors FILE",
            )
        return found

    def _refuse_second(self, pair: Pair, pairs: dict[str, Pair], number: int) -> None:
        if (other := pairs.get(pair.wanted.name)) is not None:
            raise UsageError(
                "ANY-MAP-005",
                self._at(number, f"{pair.stored.name} and {other.stored.name} both lead to {pair.wanted.name}"),
                hint="make one of the patterns narrower",
            )

    def _at(self, number: int, what: str) -> str:
        return f"rule {number} of {self.origin}: {what}; nothing was changed"


def _pattern(text: str | None) -> re.Pattern[str]:
    """Return the pattern of a name; a star after a backslash is a star."""
    parts = _STAR.split(text or "")
    return re.compile("(.+)".join(re.escape(part.replace("\\*", "*")) for part in parts), re.DOTALL)


def _matches(text: str, item: Stored | Wanted) -> bool:
    pattern = _pattern(text)
    return any(pattern.fullmatch(name) for name in (item.name, *item.aliases))


def _literal(name: str) -> str:
    return name.replace("*", "\\*")


def _rule(path: str | os.PathLike[str], number: int, item: Any) -> Rule:
    if not isinstance(item, dict) or not item or not all(isinstance(item[key], str) for key in item if key != "layout"):
        raise _malformed(path, f"rule {number} is no mapping of texts")
    if unknown := [str(key) for key in item if key not in _KEYS]:
        near = difflib.get_close_matches(unknown[0], _KEYS, n=1)
        raise _malformed(path, f"rule {number} has {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
    keys = set(item) - {"layout"}
    if keys == {"from", "to"}:
        steps = item.get("layout")
        return Rule(item["from"], item["to"], None if steps is None else tuple(_steps(path, number, steps)))
    if keys not in ({"drop"}, {"keep"}) or "layout" in item:
        raise _malformed(path, f"rule {number} has {', '.join(item)}: it takes from and to, or drop, or keep")
    return Rule(item.get("drop"), item.get("keep"))


def _steps(path: str | os.PathLike[str], number: int, steps: Any) -> Iterator[Step]:
    for step in steps if isinstance(steps, list) else [steps]:
        name, value = next(iter(step.items())) if isinstance(step, dict) and len(step) == 1 else (step, None)
        if name not in STEPS:
            raise _malformed(path, f"rule {number} has the layout {step!r}; known are {', '.join(STEPS)}")
        yield Step(name, _tuples(value))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(rule: Rule) -> dict[str, Any]:
    if rule.source is None or rule.target is None:
        return {"drop": rule.source} if rule.target is None else {"keep": rule.target}
    steps = [step.name if step.value is None else {step.name: _lists(step.value)} for step in rule.layout or ()]
    return {"from": rule.source, "to": rule.target, **({"layout": steps} if steps else {})}


def _malformed(path: str | os.PathLike[str], what: str) -> UsageError:
    return UsageError(
        "ANY-MAP-002",
        f"{path} is no file of rules: {what}",
        hint="write `version: 1`, and under `rules:` lines such as `- {from: old/*, to: model/*}`",
    )
