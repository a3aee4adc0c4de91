"""A user's own rules for which stored tensor fills which variable, in a YAML file; they come before any proposal.

    version: 1
    rules:
      - {from: module/*/weight, to: model/*/kernel, layout: [transpose]}
      - {from: [att_*/q, att_*/k, att_*/v], to: model/att_*/qkv, axis: 1}
      - {drop: teacher/*}           # stored, and not wanted
      - {keep: model/head/*}        # wanted, and left at the model's own value

`from` and `drop` are names (or further names) of the file's tensors, `to` and `keep` of the model's variables. A `*`
stands for any text of one or more characters, in `to` for the same as in `from`, in order. Several names under `from`
are joined along `axis` (the last, if it is not said), where their stars stand for the same. `layout` are steps of
`anyrig.mapping.layout`, a name or `{name: value}`; without it the one layout that fits is taken. `same_code: true` in
place of `rules` says that the same code made both sides: then the order in which Keras lists layers decides.
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
from anyrig.mapping.layout import STEPS
from anyrig.mapping.propose import propose
from anyrig.mapping.result import Mapping, Pair, Stored
from anyrig.mapping.rule import Rule, literal, malformed, plain, rule_of
from anyrig.mapping.sides import joined_as, stored_side
from anyrig.state.wanted import Wanted

_STAR = re.compile(r"(?<!\\)\*")
_JOINED = " + "


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in their order; `origin` is the file that they are from, for messages. `same_code`: see above."""

    rules: tuple[Rule, ...]
    origin: str = "the rules"
    same_code: bool = False

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rules:
        """Return the rules in a file. Raises ANY-MAP-002 for a file that has none, or other keys."""
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise malformed(path, str(error).replace("\n", " ")) from error
        if data == {"version": 1, "same_code": True}:
            return cls((), str(path), same_code=True)
        if not isinstance(data, dict) or data.get("version") != 1 or not isinstance(data.get("rules"), list):
            raise malformed(path, "expected `version: 1` and a list `rules`, or `same_code: true` alone")
        if unknown := data.keys() - {"version", "rules"}:
            raise malformed(path, f"{', '.join(map(str, unknown))} beside `rules`")
        return cls(tuple(rule_of(path, number, item) for number, item in enumerate(data["rules"], 1)), str(path))

    @classmethod
    def of(cls, mapping: Mapping) -> Rules:
        """Return rules that give the pairs of a mapping again, and leave what it leaves."""
        pairs = [
            Rule(
                _source_of(pair.stored),
                literal(pair.wanted.name),
                pair.steps,
                pair.stored.axis if _is_joined(pair.stored) else -1,
            )
            for pair in mapping.pairs
        ]
        drops = [Rule(literal(item.name), None) for item in mapping.dropped]
        return cls((*pairs, *drops, *(Rule(None, literal(want.name)) for want in mapping.kept)))

    def text(self) -> str:
        """Return them as the YAML of a rules file."""
        data = {"version": 1, "rules": [plain(rule) for rule in self.rules]}
        return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))

    def apply(self, tensors: Iterable[FileTensor], wanted: Iterable[Wanted]) -> Mapping:
        """Return the mapping that these rules give, and for all that they do not name the one that is proposed.

        Raises ANY-MAP-003 (a rule that nothing matches), -004 (it leads to no variable), -005 (two tensors for one
        variable), -006 (no one layout fits, or tensors cannot be joined).
        """
        stored, wants = stored_side(tensors), list(wanted)
        pairs: dict[str, Pair] = {}
        dropped: list[Stored] = []
        kept: list[Wanted] = []
        for number, rule in enumerate(self.rules, 1):
            if rule.source is None:
                kept += self._some([want for want in wants if _matches(rule.target or "", want)], number)
            elif rule.target is None:
                dropped += self._some([item for item in stored if _matches(rule.sources[0], item)], number)
            else:
                for pair in self._some(list(self._pairs(rule, number, stored, wants)), number):
                    self._refuse_second(pair, pairs, number)
                    pairs[pair.wanted.name] = pair
        settled = (*(pair.stored for pair in pairs.values()), *dropped)
        used = {tensor.name for item in settled for tensor in item.tensors}
        filled = pairs.keys() | {want.name for want in kept}
        rest = propose(
            [item for item in stored if item.tensors[0].name not in used and item.tensors[0].role == "weight"],
            [want for want in wants if want.name not in filled],
        )
        return replace(
            rest, pairs=(*pairs.values(), *rest.pairs), kept=(*rest.kept, *kept), dropped=(*rest.dropped, *dropped)
        )

    def _pairs(self, rule: Rule, number: int, stored: Sequence[Stored], wants: Sequence[Wanted]) -> Iterator[Pair]:
        known = {name: want for want in wants for name in (*want.aliases, want.name)}
        for item, texts in self._sources(rule, number, stored):
            rest = iter(texts)
            parts = [part.replace("\\*", "*") for part in _STAR.split(rule.target or "")]
            name = parts[0] + "".join(next(rest, "*") + part for part in parts[1:])
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise UsageError(
                    "ANY-MAP-004",
                    self._at(number, f"{item.name} becomes {name}, and the model has no such variable"),
                    hint=f"did you mean {near[0]}?" if near else "see its names: anyrig explain FILE MODEL",
                )
            yield self._pair(rule, number, item, known[name])

    def _sources(self, rule: Rule, number: int, stored: Sequence[Stored]) -> Iterator[tuple[Stored, tuple[str, ...]]]:
        """Yield what the rule takes from the file, and what its stars stand for there."""
        found: dict[tuple[str, ...], list[Stored]] = {}
        for source in rule.sources:
            for item, texts in _matching(source, stored):
                found.setdefault(texts, []).append(item)
        for texts, items in found.items():
            if len(rule.sources) == 1:
                yield from ((item, texts) for item in items)
            else:
                yield self._joined(rule, number, items), texts

    def _joined(self, rule: Rule, number: int, items: Sequence[Stored]) -> Stored:
        name = _JOINED.join(item.name for item in items)
        if len(items) != len(rule.sources):
            raise UsageError(
                "ANY-MAP-003",
                self._at(number, f"of {len(rule.sources)} tensors to join it matches {len(items)}: {name}"),
                hint="see the names: anyrig inspect --tensors FILE",
            )
        tensors = [tensor for item in items for tensor in item.tensors]
        rank = len(items[0].shape)
        whole = joined_as(name, tensors, rule.axis % rank) if -rank <= rule.axis < rank else None
        if whole is None or len(tensors) != len(items):
            shapes = ", ".join(f"{item.name} {list(item.shape)} {item.dtype}" for item in items)
            raise UsageError(
                "ANY-MAP-006",
                self._at(number, f"these cannot be joined along axis {rule.axis}: {shapes}"),
                hint="say another axis, or name tensors that agree in all other axes and in type",
            )
        return whole

    def _pair(self, rule: Rule, number: int, item: Stored, want: Wanted) -> Pair:
        why = f"rule {number} of {self.origin}"
        if rule.layout is not None:
            return Pair(item, want, "layout by rule", why, 1.0, rule.layout)
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


def _matching(text: str, stored: Iterable[Stored]) -> Iterator[tuple[Stored, tuple[str, ...]]]:
    """Yield the tensors that a pattern matches, and what its stars stand for."""
    pattern = _pattern(text)
    for item in stored:
        found = next((m for name in (item.name, *item.aliases) if (m := pattern.fullmatch(name))), None)
        if found is not None:
            yield item, found.groups()


def _matches(text: str, item: Stored | Wanted) -> bool:
    pattern = _pattern(text)
    return any(pattern.fullmatch(name) for name in (item.name, *item.aliases))


def _is_joined(stored: Stored) -> bool:
    """Tell whether a rule has to join the tensors, which are no partitions of one that rules call by one name."""
    return len(stored.tensors) > 1 and stored.name not in {item.name for item in stored_side(stored.tensors)}


def _source_of(stored: Stored) -> str | tuple[str, ...]:
    if _is_joined(stored):
        return tuple(literal(tensor.name) for tensor in stored.tensors)
    return literal(stored.name)
