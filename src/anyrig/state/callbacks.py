"""The state of Keras callbacks as JSON and named arrays, so that a resumed run decides as the uninterrupted one would.

Keras's own callbacks are in a table of the attributes that change during training; any other callback takes part by
`get_state()`, which returns a dict of JSON values, numpy scalars and arrays, nested as it likes,
and `set_state(state)`.
Keys are the class name and the position among callbacks of that class: `EarlyStopping.0`. A callback with nothing to
keep has no key. Nothing is pickled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from anyrig.errors import AnyrigError
from anyrig.state.plainvalues import decode, encode
from anyrig.state.walk import model_variables

Array = np.ndarray[Any, Any]

_SAVER = ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch")
# What each callback of Keras 3 changes while it runs. Not here because it follows from arguments, from the optimizer or
# from the next epoch: `monitor_op`, `min_delta`, learning rates, progress bars, open files and summary writers.
_FIELDS: dict[str, tuple[str, ...]] = {
    "EarlyStopping": ("best", "wait", "stopped_epoch", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": _SAVER,
    "OrbaxCheckpoint": (*_SAVER, "_total_batches_seen"),
    "BackupAndRestore": ("_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
    "CSVLogger": ("keys",),
    "History": ("history", "epoch"),
    "ProgbarLogger": (),
    "LearningRateScheduler": (),
    "TerminateOnNaN": (),
    "LambdaCallback": (),
    "RemoteMonitor": (),
}


# Arguments of those callbacks of Keras 3 that decide about the numbers of a run; others only log or save.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "EarlyStopping": (
        *("monitor", "mode", "patience", "min_delta", "baseline", "restore_best_weights", "start_from_epoch"),
    ),
    "ReduceLROnPlateau": ("monitor", "mode", "patience", "factor", "min_delta", "cooldown", "min_lr"),
    "LearningRateScheduler": ("schedule",),
    "SwapEMAWeights": ("swap_on_epoch",),
    "TerminateOnNaN": ("raise_error",),
}


@dataclass(frozen=True, slots=True)
class CallbackStates:
    """State by callback key; `unsupported` says in words which callback keeps what that is not here."""

    json: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, dict[str, Array]] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)


def callbacks_state(callbacks: Sequence[keras.callbacks.Callback]) -> CallbackStates:
    """Return the present state of `callbacks`; raises ANY-STATE-012 if a `get_state` returns what cannot be kept."""
    states = CallbackStates()
    for key, callback in _keyed(callbacks):
        reason = _shortfall(callback)
        if reason:
            states.unsupported.append(f"{key}: {reason}")
        state = _state(callback)
        if state:
            arrays: dict[str, Array] = {}
            states.json[key] = encode(state, key, arrays)
            if _speaks_for_itself(callback) or not _is_of_keras(callback):  # Keras's never write into their arrays
                arrays = {name: np.array(array) for name, array in arrays.items()}
            states.arrays.update({key: arrays} if arrays else {})
    return states


def deciding_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, Any]:
    """Return {"callbacks": arguments by key} of the callbacks of Keras that decide about a run's numbers, as JSON.

    Empty if there are none. Of a function its qualified name is kept.
    """
    described = {
        key: {name: _described(name, getattr(callback, name)) for name in _ARGUMENTS[kind] if hasattr(callback, name)}
        for key, callback in _keyed(callbacks)
        if (kind := _known(callback)) in _ARGUMENTS
    }
    return {"callbacks": described} if described else {}


def _described(name: str, value: Any) -> Any:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if value is None or isinstance(value, bool | int | str):
        return value
    return abs(float(value)) if name == "min_delta" else float(value)  # Keras turns its sign round while it runs


def restore_callbacks(
    callbacks: Sequence[keras.callbacks.Callback],
    json: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, Mapping[str, Array]],
) -> None:
    """Put states back. Call it after `on_train_begin`, in which EarlyStopping and others reset themselves.

    A callback without a stored state is left as it is. Raises ANY-STATE-013, with nothing changed, if a state has no
    callback or its callback watches another quantity.
    """
    present = dict(_keyed(callbacks))
    decoded = {key: decode(dict(state), dict(arrays.get(key, {}))) for key, state in json.items()}
    for key, state in decoded.items():
        _check(key, state, present)
    for key, state in decoded.items():
        _set(present[key], state)


def _keyed(callbacks: Sequence[keras.callbacks.Callback]) -> list[tuple[str, Any]]:
    counts: Counter[str] = Counter()
    keyed = []
    for callback in callbacks:
        kind = type(callback).__name__
        keyed.append((f"{kind}.{counts[kind]}", callback))
        counts[kind] += 1
    return keyed


def _known(callback: Any) -> str | None:
    """Return the nearest Keras class of `callback` that is in the table, by identity of the class."""
    for kind in type(callback).__mro__:
        if kind.__name__ in _FIELDS and getattr(keras.callbacks, kind.__name__, None) is kind:
            return kind.__name__
    return None


def _is_of_keras(callback: Any) -> bool:
    known = _known(callback)
    return known is not None and type(callback) is getattr(keras.callbacks, known)


def _speaks_for_itself(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _shortfall(callback: Any) -> str | None:
    """Say why the state of `callback` may be incomplete; None if it is complete."""
    known = _known(callback)
    if _speaks_for_itself(callback):
        return None
    if known is None:
        return "has no get_state() and set_state(state), so it starts afresh after a resume"
    if not _is_of_keras(callback):
        return f"only what {known} keeps is saved: add get_state() and set_state(state) for the rest"
    if known == "CSVLogger" and not callback.append:
        return "append=False empties the file at every start: use append=True"
    return None


def _state(callback: Any) -> dict[str, Any]:
    if _speaks_for_itself(callback):
        state = callback.get_state()
        return {} if isinstance(state, dict) and not state else {"state": state}
    known = _known(callback)
    state = {name: getattr(callback, name) for name in _FIELDS[known] if hasattr(callback, name)} if known else {}
    if state.get("best_weights") is not None:
        state["best_weights"] = dict(zip(_weight_names(callback.model), state["best_weights"], strict=True))
    return {"monitor": callback.monitor, **state} if "best" in state else state


def _check(key: str, state: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    problem = None
    if key not in present:
        problem = f"there is no callback {key}: {list(present) or 'no callbacks'}"
    elif "monitor" in state and state["monitor"] != getattr(present[key], "monitor", None):
        problem = f"{key} watches {getattr(present[key], 'monitor', None)!r}, the stored one {state['monitor']!r}"
    elif state.get("best_weights") is not None:
        wanted = _weight_names(present[key].model)
        if set(wanted) != set(state["best_weights"]):
            problem = f"{key}: best_weights of other variables: {sorted(set(wanted) ^ set(state['best_weights']))[:5]}"
    if problem:
        raise AnyrigError(
            "ANY-STATE-013",
            f"the stored state of callbacks does not fit: {problem}",
            hint="give the callbacks of the interrupted run, in its order",
        )


def _set(callback: Any, state: dict[str, Any]) -> None:
    if _speaks_for_itself(callback):
        callback.set_state(state["state"])
        return
    if state.get("best_weights") is not None:
        state["best_weights"] = [state["best_weights"][name] for name in _weight_names(callback.model)]
    for name, value in state.items():
        if name != "monitor":
            setattr(callback, name, value)


def _weight_names(model: Any) -> list[str]:
    named = {id(item.variable): item.name for item in model_variables(model)}
    return [named[id(variable)] for variable in model.weights]
