"""A checkpoint as if it had been saved by a model whose layers are called otherwise.

What belongs to a variable follows it: slots of optimizers, accumulated gradients, averages, files of the layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
    match one variable, and for one new name of two.
    """

    def __init__(self, source: Any, rename: Mapping[str, str]) -> None:
        self._source = source
        rules = [(old, *_rule(old, new)) for old, new in rename.items()]
        used: set[str] = set()
        paths: dict[str, str] = {}
        for entry in source.manifest.tensors:
            if entry.name.startswith(_MODEL):
                path = entry.name.removeprefix(_MODEL)
                paths[path] = _moved(path, entry.aliases, rules, used)
        self._assets = {_file_moved(path, rules, used): path for path in source.assets}
        if idle := [old for old in rename if old not in used]:
            raise _refused(
                f"{idle[0]!r} is no name, and no first part of a name, of a tensor below model/",
                "list the names with: anyrig inspect PATH --tensors",
            )
        self.stored = {_named(entry.name, paths): entry.name for entry in source.manifest.tensors}
        if len(self.stored) < len(source.manifest.tensors):
            counts = Counter(_named(entry.name, paths) for entry in source.manifest.tensors)
            doubled = next(name for name, count in counts.items() if count > 1)
            raise _refused(
                f"two tensors would be {doubled}", "rename the other one as well, or make a pattern narrower"
            )
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
    parts = old.removeprefix(_MODEL).split("*")
    rest = "()" if len(parts) > 1 else "(/.+|)"
    return re.compile("(.+)".join(map(re.escape, parts)) + rest, re.DOTALL), new.removeprefix(_MODEL)


def _moved(path: str, aliases: Iterable[str], rules: Iterable[tuple[str, re.Pattern[str], str]], used: set[str]) -> str:
    found = [(old, new, match) for old, pattern, new in rules if (match := _match(pattern, (path, *aliases)))]
    if len(found) > 1:
        raise _refused(
            f"{found[0][0]!r} and {found[1][0]!r} both name model/{path}", "keep one of the two, or make it narrower"
        )
    for old, new, match in found:
        used.add(old)
        return _filled(new, match)
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


def _file_moved(path: str, rules: Iterable[tuple[str, re.Pattern[str], str]], used: set[str]) -> str:
    """Return the new path of a layer's file; its last part is the file, what is before it the layer."""
    layer, _, file = path.rpartition("/")
    return f"{_moved(layer, (), rules, used)}/{file}"


def _refused(what: str, hint: str) -> UsageError:
    return UsageError("ANY-STATE-018", f"rename: {what}; nothing was changed", hint=hint)
