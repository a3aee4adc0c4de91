"""Pins: checkpoints that no rule removes.

A pin is a small file beside the checkpoint, `step-000001200.pin`: that it is there is the pin, its text is a name or
nothing. So a kill in the middle of pinning leaves a pin, two people who pin never write one file, and an object store
can hold it. Anybody may pin while a run is alive: see `remove_steps` for how the two agree.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.layout import step_name, step_of
from anyrig.store.local import LOCAL, LocalFiles

_SUFFIX = ".pin"
_UNFINISHED = re.compile(r"\.step-[0-9]{9,18}\.pin-[0-9a-f]{8}")
_LONGEST = 200


def pins(checkpoints: Path) -> dict[int, str]:
    """Return the pinned steps with their names ("" for none), whether or not their checkpoints are there."""
    try:
        names = sorted(os.listdir(checkpoints))
    except FileNotFoundError:
        return {}
    steps = [step_of(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)]
    return {step: _name(checkpoints, step) for step in steps if step is not None}


def is_pinned(checkpoints: Path, step: int) -> bool:
    """Tell whether `step` is pinned."""
    return os.path.lexists(_path(checkpoints, step))


def pin(checkpoints: Path, step: int, name: str = "", *, files: LocalFiles = LOCAL) -> None:
    """Pin the checkpoint of `step`; a new name replaces the old one. Raises where that checkpoint is not there."""
    if len(name) > _LONGEST or not name.isprintable():
        raise UsageError(
            "ANY-STORE-015", f"a pin cannot be called {name[:40]!r}", hint=f"use up to {_LONGEST} printable characters"
        )
    holder = next((other for other, taken in pins(checkpoints).items() if name and taken == name), step)
    if holder != step:
        raise UsageError(
            "ANY-STORE-015", f"step {holder} is pinned as {name} already", hint="give another name, or unpin that one"
        )
    if not is_pinned(checkpoints, step) or _name(checkpoints, step) != name:
        _write(checkpoints, step, name, files)
    if not os.path.lexists(checkpoints / step_name(step)):
        unpin(checkpoints, step, files=files)
        raise UsageError(
            "ANY-STORE-016",
            f"{checkpoints} has no checkpoint of step {step}, or it was removed just now",
            hint=f"see which there are: anyrig ls {checkpoints}",
        )


def unpin(checkpoints: Path, step: int, *, files: LocalFiles = LOCAL) -> bool:
    """Remove the pin of `step`; tell whether there was one."""
    try:
        files.remove_file(_path(checkpoints, step))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(checkpoints, step, error) from error
    try:
        files.flush_folder(checkpoints)
    except OSError as error:
        raise _failed(checkpoints, step, error) from error
    return True


def sweep_pins(checkpoints: Path, *, files: LocalFiles = LOCAL) -> list[str]:
    """Remove what a kill in the middle of giving a pin another name left; return the names."""
    try:
        left = sorted(name for name in os.listdir(checkpoints) if _UNFINISHED.fullmatch(name))
    except FileNotFoundError:
        return []
    for name in left:
        files.remove_file(checkpoints / name)
    return left


def _write(checkpoints: Path, step: int, name: str, files: LocalFiles) -> None:
    text = json.dumps({"name": name}, ensure_ascii=False).encode()
    new = checkpoints / f".{step_name(step)}{_SUFFIX}-{os.urandom(4).hex()}"
    target = new if is_pinned(checkpoints, step) else _path(checkpoints, step)
    try:
        descriptor = files.create(target)
        try:
            files.write(descriptor, memoryview(text))
            files.flush(descriptor)
        finally:
            files.close(descriptor)
        if target == new:
            files.rename(new, _path(checkpoints, step))
        files.flush_folder(checkpoints)
    except OSError as error:
        raise _failed(checkpoints, step, error) from error


def _failed(checkpoints: Path, step: int, error: OSError) -> AnyrigError:
    return AnyrigError(
        "ANY-STORE-017",
        f"the pin of step {step} in {checkpoints} could not be changed: {error}",
        hint="check the folder's permissions and its disk",
    )


def _path(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"{step_name(step)}{_SUFFIX}"


def _name(checkpoints: Path, step: int) -> str:
    try:
        found = json.loads(_path(checkpoints, step).read_bytes())
    except (OSError, ValueError):  # cut short by a kill: a pin all the same
        return ""
    return str(found.get("name", "")) if isinstance(found, dict) else ""
