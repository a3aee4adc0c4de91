"""Settings of TensorFlow on CPU that change the last bits of results: `intra_op` threads and oneDNN.

A run stores them with its environment and applies them again at every start, because the same bytes come out only with
the same two settings. They must be applied before TensorFlow starts; later, a difference is an error, never a warning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from anyrig.environment import cpu_flags
from anyrig.errors import UsageError

THREADS = "intra_op_threads"
ONEDNN = "onednn"
_THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"
_ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
# TensorFlow turns oneDNN on by itself for processors with one of these (tsl/util/onednn_util and util_port.cc).
_ONEDNN_FLAGS = ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")


def numeric_settings() -> dict[str, int | bool]:
    """Return the settings in force: what was set, else what TensorFlow chooses on this machine."""
    return {THREADS: _threads(), ONEDNN: _onednn()}


def apply_numeric_settings(settings: Mapping[str, object]) -> None:
    """Put stored `settings` in force for this process and its children, before TensorFlow starts.

    Raises UsageError when a setting differs and TensorFlow has already started with the other value.
    """
    _apply_onednn(settings.get(ONEDNN))
    _apply_threads(settings.get(THREADS))


def _threads() -> int:
    tensorflow = sys.modules.get("tensorflow")
    explicit = tensorflow.config.threading.get_intra_op_parallelism_threads() if tensorflow else 0
    return int(explicit or os.environ.get(_THREADS_VARIABLE) or _processors())


def _processors() -> int:
    """Return the processors this process may use, which is what TensorFlow counts."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _onednn() -> bool:
    value = os.environ.get(_ONEDNN_VARIABLE)
    if value is not None:
        return value.lower() in ("1", "true")
    return any(flag in _ONEDNN_FLAGS for flag in cpu_flags())


def _apply_onednn(wanted: object) -> None:
    if wanted is None:
        return
    _check(isinstance(wanted, bool), f"{ONEDNN}: expected true or false, found {wanted!r}")
    if wanted != _onednn() and "tensorflow" in sys.modules:
        raise _too_late(_ONEDNN_VARIABLE, str(int(bool(wanted))))
    os.environ[_ONEDNN_VARIABLE] = str(int(bool(wanted)))


def _apply_threads(wanted: object) -> None:
    if wanted is None:
        return
    valid = isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0
    _check(valid, f"{THREADS}: expected a positive integer, found {wanted!r}")
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow and wanted != _threads():
        try:
            tensorflow.config.threading.set_intra_op_parallelism_threads(wanted)
        except RuntimeError as error:
            raise _too_late(_THREADS_VARIABLE, str(wanted)) from error
    os.environ[_THREADS_VARIABLE] = str(wanted)


def _check(valid: bool, message: str) -> None:
    if not valid:
        raise UsageError("ANY-DEVICE-011", message, hint="remove the damaged entry from the run's environment.json")


def _too_late(variable: str, value: str) -> UsageError:
    return UsageError(
        "ANY-DEVICE-007",
        f"this run was made with {variable}={value}, but TensorFlow has already started with another value, and would "
        "compute other last bits",
        hint=f"set {variable}={value} and start again, or create the Rig or Run before TensorFlow is used",
    )
