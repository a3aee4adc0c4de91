"""JSON in files of other programs: as Keras writes it (NaN and infinity are allowed), within bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anyrig.formats.contents import Budget, damaged, over_budget
from anyrig.store.jsonvalues import unique_keys


def json_object(path: Path, what: str, text: str | bytes, budget: Budget) -> dict[str, Any]:
    """Return the object that `text` is; `what` names it in errors (ANY-FORMAT-002 and 003)."""
    if len(text) > budget.header_bytes:
        raise over_budget(path, f"{what} has {len(text)} bytes")
    try:
        found = json.loads(text, object_pairs_hook=unique_keys)
    except RecursionError:
        raise over_budget(path, f"{what} is nested too deeply") from None
    except ValueError as error:
        raise damaged(path, f"{what} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise damaged(path, f"{what} is not a JSON object")
    if _deeper(found, budget.depth):
        raise over_budget(path, f"{what} is nested more than {budget.depth} deep")
    return found


def _deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
    return True
