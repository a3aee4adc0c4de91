"""Names of stored tensors: parts joined by `/`, each part escaped so that any text is a part.

`%` and `/` inside a part become `%25` and `%2F`, as in URLs; everything else is kept, so names stay readable.
"""

from __future__ import annotations


def escape(part: str) -> str:
    """Return `part` so that it can stand between slashes."""
    return part.replace("%", "%25").replace("/", "%2F")


def unescape(part: str) -> str:
    """Return the text that `escape` was given."""
    return part.replace("%2F", "/").replace("%25", "%")


def join(*parts: str) -> str:
    """Return the name made of `parts`, each escaped."""
    return "/".join(escape(part) for part in parts)


def split(name: str) -> tuple[str, ...]:
    """Return the unescaped parts of `name`; the inverse of `join`."""
    return tuple(unescape(part) for part in name.split("/"))
