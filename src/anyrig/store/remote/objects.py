"""Every effect on a remote store, each tried several times, its errors named.

Objects are whole or not there: nothing is appended to, and what was put is compared with what the store then says it
has (size, and the MD5 where its tag is one). No method decides anything.
"""

from __future__ import annotations

import errno
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.digest import BLOCK_BYTES
from anyrig.store.remote.url import cleaned

T = TypeVar("T")
ATTEMPTS = 4
BACKOFF_SECONDS = 0.25
_LOCAL_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_MD5 = re.compile(r"[0-9a-f]{32}")
_S3 = ("s3", "s3a")
_OBJECT_STORES = frozenset({*_S3, "gs", "gcs", "abfs", "az"})  # have no folders to make


class Unreachable(AnyrigError):
    """The store did not answer, or answered with an error that may pass; trying later may help."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store says of an object; `tag` changes with its content where the store has such a thing."""

    size: int
    tag: str
    modified: datetime | None


class Objects:
    """The objects below one URL, by their names relative to it, with `/`."""

    def __init__(
        self,
        url: str,
        *,
        attempts: int = ATTEMPTS,
        backoff: float = BACKOFF_SECONDS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = cleaned(url)
        self._attempts = attempts
        self._backoff = backoff
        self._pause = pause
        self._fs, root = _connect(url)
        self._root = root.rstrip("/")

    def all(self, folder: str = "") -> dict[str, Stored]:
        """Return everything in `folder`, at any depth; nothing when there is no such folder."""

        def find() -> dict[str, Any]:
            self._fs.invalidate_cache()
            found: dict[str, Any] = self._fs.find(self._path(folder), detail=True)
            return found

        try:
            found = self._try("list", folder, find)
        except FileNotFoundError:
            return {}
        start = len(self._root) + 1
        # A store may list the folder itself as an object of no bytes.
        return {path[start:]: _stored(info) for path, info in found.items() if not path.endswith("/")}

    def info(self, name: str) -> Stored:
        """Return what the store says of an object; FileNotFoundError when it is not there."""
        return self._try("look at", name, lambda: self._info(name))

    def read(self, name: str) -> bytes:
        """Return an object's content; FileNotFoundError when it is not there."""
        content: bytes = self._try("read", name, lambda: self._fs.cat_file(self._path(name)))
        return content

    def open(self, name: str) -> Any:
        """Open an object for reading, block by block."""
        return self._try(
            "open",
            name,
            lambda: self._fs.open(self._path(name), "rb", block_size=8 * BLOCK_BYTES, cache_type="readahead"),
        )

    def write(self, name: str, content: bytes) -> None:
        """Put a small object in one request, and read it back."""

        def act() -> None:
            self._make_parent(name)
            self._fs.pipe_file(self._path(name), content)
            if self._fs.cat_file(self._path(name)) != content:
                raise OSError("what was written does not read back")

        self._put("write", name, act)

    def put(self, name: str, local: Path, md5: str) -> None:
        """Upload a file (in parts when it is large) and compare what the store then has with it."""
        size = local.stat().st_size

        def act() -> None:
            self._make_parent(name)
            self._fs.put_file(str(local), self._path(name))
            if not self._arrived(name, size, md5):
                raise OSError("what arrived is not what was sent")

        self._put("upload", name, act)

    def holds(self, name: str, size: int, md5: str) -> bool:
        """Tell whether an object is there that has this content for sure, by the store's own tag."""
        try:
            found = self.info(name)
        except FileNotFoundError:
            return False
        return found.size == size and found.tag == md5

    def get(self, name: str, local: Path) -> None:
        """Download an object into the file `local`; FileNotFoundError when it is not there."""
        self._try("download", name, lambda: self._fs.get_file(self._path(name), str(local)))

    def remove(self, name: str) -> None:
        """Remove an object; that it is gone already is no error."""
        try:
            self._try("remove", name, lambda: self._fs.rm_file(self._path(name)))
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _info(self, name: str) -> Stored:
        self._fs.invalidate_cache()
        return _stored(self._fs.info(self._path(name)))

    def _make_parent(self, name: str) -> None:
        if not _OBJECT_STORES.intersection(_protocols(self._fs)):
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _arrived(self, name: str, size: int, md5: str) -> bool:
        found = self._info(name)
        if found.size != size:
            return False
        if not _MD5.fullmatch(found.tag) or found.tag == md5:
            return True
        # The tag looks like an MD5 and is another one: with encryption by the store it is none. The bytes decide.
        with self._fs.open(self._path(name), "rb") as opened:
            return _md5_of(opened) == md5

    def _put(self, verb: str, name: str, act: Callable[[], None]) -> None:
        try:
            self._try(verb, name, act)
        except FileNotFoundError as error:
            raise AnyrigError(
                "ANY-REMOTE-003",
                f"{self.url}: cannot {verb} {name}: {cleaned(str(error)) or 'not found'}.",
                hint="check that the bucket exists and that the URL is spelled right",
            ) from None

    def _try(self, verb: str, name: str, act: Callable[[], T]) -> T:
        """Do it, again after a growing pause when it failed in a way that may pass."""
        for attempt in range(1, self._attempts + 1):
            try:
                return act()
            except FileNotFoundError:
                raise
            except PermissionError as error:
                raise AnyrigError(
                    "ANY-REMOTE-003",
                    f"{self.url}: may not {verb} {name or 'it'}: {cleaned(str(error)).rstrip('.')}.",
                    hint="check the credentials and what they allow (read, write, list and delete are needed)",
                ) from None
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _LOCAL_FAULTS:
                    raise
                why = cleaned(f"{type(error).__name__}: {error}")
            if attempt < self._attempts:
                self._pause(self._backoff * 2 ** (attempt - 1))
        raise Unreachable(
            "ANY-REMOTE-002",
            f"{self.url}: could not {verb} {name or 'it'}, tried {self._attempts} times; at last {why.rstrip('.')}.",
            hint="check the network, then start again the same way: what is saved locally is kept, see anyrig sync",
        ) from None


def _connect(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for `url` and the path in it; listings are never cached."""
    protocol = url.partition("://")[0].lower()
    # A new instance, so that endpoint and credentials are those of now.
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if protocol in _S3:  # `Objects` has its own retries; two sorts of them would multiply
        known = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        options["config_kwargs"] = {"retries": {"max_attempts": 1}, "connect_timeout": 10, **known}
    try:
        fs, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        package = {"s3": "anyrig[s3]", "s3a": "anyrig[s3]", "gs": "anyrig[gcs]", "gcs": "anyrig[gcs]"}.get(protocol)
        raise UsageError(
            "ANY-REMOTE-001",
            f"{cleaned(url)} cannot be opened: {cleaned(str(error))}",
            hint=f"pip install '{package}'" if package else f"install fsspec's package for {protocol}://",
        ) from None
    return fs, path


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _stored(info: dict[str, Any]) -> Stored:
    tag = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "").strip('"')
    moments = (info.get(key) for key in ("LastModified", "last_modified", "modified", "mtime", "created"))
    modified = next((moment for moment in moments if isinstance(moment, datetime)), None)
    return Stored(int(info.get("size") or 0), tag, modified)


def _md5_of(opened: Any) -> str:
    found = hashlib.md5(usedforsecurity=False)
    while block := opened.read(8 * BLOCK_BYTES):
        found.update(block)
    return found.hexdigest()
