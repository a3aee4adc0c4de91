"""The text of a URL that names a run: what is one, what of it may be shown, and which local folder belongs to it.

Pure; opens nothing. Whatever is shown, logged or stored of a URL or of a network error has gone through `cleaned`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from anyrig.errors import UsageError
from anyrig.store.digest import hash_bytes
from anyrig.store.layout import step_of

SPOOL_VARIABLE = "ANYRIG_SPOOL"

_SCHEME = re.compile(r"([a-z0-9+.\-]+::)*[a-z][a-z0-9+.\-]+://", re.IGNORECASE)  # C:// is a Windows drive
_USER = re.compile(r"://[^/\s]*@")
_SECRET = re.compile(
    r"\b([\w\-]*(?:token(?!s)|secret|passw(?:or)?d|signature|credential|api_?key|access_?key)[\w\-]*|sig)"
    r"""(["']?\s*[=:]\s*["']?)[^&\s"',)]+""",
    re.IGNORECASE,
)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell whether `path` is a URL (`s3://bucket/run`) and not a path of this machine."""
    return isinstance(path, str) and _SCHEME.match(path) is not None


def cleaned(text: str) -> str:
    """Return a URL or a message without users, passwords, tokens and signatures."""
    return _SECRET.sub(r"\1\2***", _USER.sub("://***@", text))


@dataclass(frozen=True, slots=True)
class RunUrl:
    """A run's URL (as given: it may hold a password), and the step in it that was meant, if one was."""

    url: str
    step: int | None = None

    @classmethod
    def of(cls, given: str) -> RunUrl:
        """Take apart the URL of a run, of its `checkpoints`, or of a checkpoint in there."""
        if not given.rstrip("/").partition("://")[2]:
            raise UsageError("ANY-REMOTE-011", f"{given} names no place", hint="give the bucket: s3://bucket/runs/mine")
        base, _, last = given.rstrip("/").rpartition("/")
        step = step_of(last.partition(".")[0])
        if step is not None and base.endswith("/checkpoints"):
            return cls(base.removesuffix("/checkpoints"), step)
        return cls(base if last == "checkpoints" else given.rstrip("/"))

    @property
    def spool(self) -> Path:
        """The local folder for this URL; the same for every user name, password and signature, for nothing else."""
        path, mark, query = _USER.sub("://", self.url).partition("?")
        name = re.sub(r"[^A-Za-z0-9_\-]+", "-", path.rpartition("/")[2])[:40] or "run"
        return spool_root() / f"{name}-{hash_bytes((path + mark + cleaned(query)).encode())[:16]}"


def spool_root() -> Path:
    """Return the folder that holds all spools: `ANYRIG_SPOOL`, else one in the user's cache folder."""
    if chosen := os.environ.get(SPOOL_VARIABLE):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("anyrig")) / "spool"
