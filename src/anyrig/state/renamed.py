"""A checkpoint as if it had been saved by a model whose layers are called otherwise.

What belongs to a variable follows it: slots of optimizers, accumulated gradients, averages, files of the layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from anyrig.errors import UsageError

_MODEL = "model/"


class Renamed:
    """A source for `anyrig.state.restore` that gives the tensors of another one under other names.

    `rename` maps names or their first parts (`body` is all below `body/`), or patterns with `*`, to what they are in
    the model; `model/` before them may be left out. A `*` stands for any text, and in the new name for the same.
    Keras's own names (aliases) are known too. Raises ANY-STATE-018 for a rename that matches nothing, for two that
    match one variable, for one new name of two, and for anything but a mapping of names.
    """

    def __init__(self, source: Any, rename: Mapping[str, str]) -> None:
        self._source = source
        _refuse_other_kinds(rename)
        rules = [(old, *_rule(old, new)) for old, new in rename.items()]
        used: dict[str, list[str]] = {}
        paths: dict[str, str] = {}
        for entry in source.manifest.tensors:
            if entry.name.startswith(_MODEL):
                path = entry.name.removeprefix(_MODEL)
                paths[path] = _moved(path, entry.aliases, rules, used)
        files: dict[str, list[str]] = {}  # their paths are those of layers, and the name of a file
        moved = [_moved(path, (), rules, files) for path in source.assets]
        _refuse_two("files", moved)
        self._assets = dict(zip(moved, source.assets, strict=True))
        if idle := [old for old in rename if old not in used and old not in files]:
            raise _refused(
                f"{idle[0]!r} is no name, and no first part of a name, of a tensor below model/",
                "list the names with: anyrig inspect PATH --tensors",
            )
        self.stored = {_named(entry.name, paths): entry.name for entry in source.manifest.tensors}
        _refuse_two("tensors", (_named(entry.name, paths) for entry in source.manifest.tensors))
        self._moved = used
        old = {stored: name for name, stored in self.stored.items()}
        self._manifest = SimpleNamespace(
            tensors=tuple(
                entry if old[entry.name] == entry.name else replace(entry, name=old[entry.name], aliases=())
                for entry in source.manifest.tensors
            )
        )

    @property
    def changed(self) -> dict[str, str]:
        """The stored name of each tensor that has another one now."""
        return {name: stored for name, stored in self.stored.items() if name != stored}

    def refuse_lost(self, lost: Collection[str]) -> None:
        """Raise ANY-STATE-018 for a rename of which all is among `lost`, names that the model has not."""
        for old, paths in self._moved.items():
            names = [f"{_MODEL}{path}" for path in paths]
            if all(name in lost for name in names):
                raise _refused(
                    f"{old!r} becomes {names[0]}, and the model has no such variable",
                    "list its names: save it, then anyrig inspect PATH --tensors",
                )

    @property
    def manifest(self) -> Any:
        """The entries under their new names."""
        return self._manifest

    @property
    def record(self) -> Mapping[str, Any]:
        """What was written down about how the checkpoint was made."""
        record: Mapping[str, Any] = self._source.record
        return record

    @property
    def assets(self) -> tuple[str, ...]:
        """Paths of the files, below the new names of their layers."""
        return tuple(self._assets)

    def tensors(self, names: Iterable[str], *, verify: Any) -> dict[str, Any]:
        """Return tensors by their new names."""
        wanted = list(names)
        found = self._source.tensors([self.stored[name] for name in wanted], verify=verify)
        return {name: found[self.stored[name]] for name in wanted}

    def asset(self, path: str) -> bytes:
        """Return a file by its new path."""
        content: bytes = self._source.asset(self._assets[path])
        return content


def _rule(old: str, new: str) -> tuple[re.Pattern[str], str]:
    """Return the pattern of a path below `model/`, with a group for each star and one for the rest."""
    parts = old.removeprefix(_MODEL).removesuffix("/").split("*")
    rest = "()" if len(parts) > 1 else "(/.+|)"
    return re.compile("(.+)".join(map(re.escape, parts)) + rest, re.DOTALL), new.removeprefix(_MODEL).removesuffix("/")


def _moved(
    path: str, aliases: Iterable[str], rules: Iterable[tuple[str, re.Pattern[str], str]], used: dict[str, list[str]]
) -> str:
    found = [(old, new, match) for old, pattern, new in rules if (match := _match(pattern, (path, *aliases)))]
    if len(found) > 1:
        raise _refused(
            f"{found[0][0]!r} and {found[1][0]!r} both name model/{path}", "keep one of the two, or make it narrower"
        )
    for old, new, match in found:
        moved = _filled(new, match)
        used.setdefault(old, []).append(moved)
        return moved
    return path


def _match(pattern: re.Pattern[str], known: Iterable[str]) -> re.Match[str] | None:
    return next((match for name in known if (match := pattern.fullmatch(name))), None)


def _filled(new: str, match: re.Match[str]) -> str:
    """Put what the stars stood for, in order, and the rest into a new name."""
    *texts, rest = match.groups()
    stars: Iterator[str] = iter(texts)
    parts = new.split("*")
    return parts[0] + "".join(next(stars, "*") + part for part in parts[1:]) + rest


def _named(name: str, paths: Mapping[str, str]) -> str:
    """Return the new name of a tensor: of a variable itself, or of what names one between its slashes."""
    group, _, path = name.partition("/")
    if f"{group}/" == _MODEL or (group == "ema" and path in paths):
        return f"{group}/{paths[path]}"
    return f"optimizer/{_named_inside(path, paths)}" if group == "optimizer" else name


def _named_inside(path: str, paths: Mapping[str, str]) -> str:
    """Rename the variable that an optimizer's name holds after its key; the longest that is one."""
    key, *parts = path.split("/")
    for length in range(len(parts), 0, -1):
        for start in range(len(parts) - length + 1):
            old = "/".join(parts[start : start + length])
            if old in paths:
                return "/".join((key, *parts[:start], paths[old], *parts[start + length :]))
    return path


def _refuse_other_kinds(rename: Any) -> None:
    if not isinstance(rename, Mapping) or not all(isinstance(text, str) for pair in rename.items() for text in pair):
        raise _refused(
            f"{rename!r} is no mapping of names",
            'write rename={"body": "encoder/body"}; a file of rules is for anyrig.open_model(path, into=, rules=)',
        )


def _refuse_two(what: str, names: Iterable[str]) -> None:
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise _refused(f"two {what} would be {doubled[0]}", "rename the other one as well, or make a pattern narrower")


def _refused(what: str, hint: str) -> UsageError:
    return UsageError("ANY-STATE-018", f"rename: {what}; nothing was changed", hint=hint)
