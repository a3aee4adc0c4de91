"""What the names of variables say in TensorFlow 1's name-based checkpoints: slots, moving averages, counters.

A slot is kept as `<variable>/<slot>`, sometimes below the scope of its optimizer. It is taken for one only if that
variable, with the same shape, is in the file, too; so no variable is lost because of how somebody named it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from anyrig.formats.contents import Role

# The names that TensorFlow 1's optimizers give to their slots; the second of one variable ends in _1, and so on.
_SLOT = re.compile(
    r"(Momentum|Adam|AdamOptimizer|AdamW|AdaMax|Adagrad|AdagradDA|gradient_accumulator|gradient_squared_accumulator|"
    r"Adadelta|RMSProp|Ftrl|ProximalAdagrad|LARS|LAMB|Lion|adam_m|adam_v|lamb_m|lamb_v|"
    r"ExponentialMovingAverage|EMA|mg|ms|accum|accum_update|linear|m|v|vhat)(_\d+)?"
)
_OPTIMIZER_SCALAR = re.compile(r"(^|/)beta[12]_power(_\d+)?$")
_COUNTER = re.compile(r"(^|/)(global_step|save_counter|cur_epoch|iterations?)$")


class Purpose(NamedTuple):
    """What a variable is for."""

    role: Role = "weight"
    of: str | None = None
    slot: str | None = None


def purposes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Purpose]:
    """Return what each variable of a file is for, from all names and shapes."""
    return {name: _purpose(name, shapes) for name in shapes}


def _purpose(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Purpose:
    if _OPTIMIZER_SCALAR.search(name):
        return Purpose("optimizer", None, name.rpartition("/")[2])
    if _COUNTER.search(name):
        return Purpose("other")
    stem, _, last = name.rpartition("/")
    if _SLOT.fullmatch(last) and (variable := _owner(stem, shapes)) is not None:
        return Purpose("optimizer", variable, last)
    return Purpose()


def _owner(stem: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the variable that a slot's name begins or, below scopes of the optimizer, ends with: the longest one."""
    parts = stem.split("/")
    for first in range(len(parts)):
        candidate = "/".join(parts[first:])
        if candidate in shapes:
            return candidate
    return None
