"""The precision of a run: settled before the model is built, in force while it is built, and found in a built model.

A precision is the name of a Keras dtype policy. Keras's global policy is set while the user's builder runs and put back
after; a model built elsewhere is taken as it is. Weights and optimizer stay float32 in both mixed policies.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import xxhash

from anyrig.store.commit import folders_with_steps
from anyrig.store.read import Checkpoint
from anyrig.topology.plan import Precision, choose_precision


def settle(requested: str, devices: Sequence[str]) -> Precision:
    """Return the precision for models built now; "auto" looks at Keras's global policy and at the devices.

    The rule for GPUs has not been tried on a GPU. Raises UsageError for a name that is no precision.
    """
    return choose_precision(requested, keras.config.dtype_policy().name, _capability(devices))


@contextmanager
def policy_in_force(name: str) -> Iterator[None]:
    """Make `name` Keras's global dtype policy inside the block."""
    before = keras.config.dtype_policy()
    if before.name != name:
        keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def found_in(model: keras.Model) -> str:
    """Return what the layers of `model` compute in: "float32", or "mixed_float16, in 1 of 5 layers float32"."""
    policies = [policy for policy, holds_weights in _policies(model) if holds_weights]
    counts = Counter(policies or [policy for policy, _ in _policies(model)]).most_common()
    (main, _), *others = counts or [("float32", 0)]
    return ", ".join([main, *(f"in {number} of {len(policies)} layers {policy}" for policy, number in others)])


def precision_of(model: keras.Model, settled: Precision) -> Precision:
    """Return `settled` if the layers of `model` compute in it, else what they compute in."""
    found = found_in(model)
    if found.partition(",")[0] == settled.policy:
        return Precision(found, settled.reason)
    return Precision(found, f"Precision {found}: what the layers of the model were built with.")


def identity_of(model: keras.Model) -> dict[str, str]:
    """Return what a run's precision is compared by: the words of `found_in`, and a hash of every layer's policy."""
    policies = [policy for policy, _ in _policies(model)]
    return {"found": found_in(model), "layers": xxhash.xxh3_128_hexdigest("\n".join(policies).encode())}


def recorded(run: str | os.PathLike[str]) -> str | None:
    """Return the precision that the run in this directory was started in; None where there is no run yet."""
    for candidate in folders_with_steps(Path(run) / "checkpoints"):
        if isinstance(candidate, Checkpoint):
            return candidate.progress.get("precision")
    return None


def _policies(model: keras.Model) -> list[tuple[str, bool]]:
    """Return the policy of each innermost layer, in the model's order, and whether it holds weights of its own."""
    innermost = (layer for layer in model._flatten_layers() if not layer._layers)
    return [(layer.dtype_policy.name, bool(layer.weights)) for layer in innermost]


def _capability(devices: Sequence[str]) -> tuple[int, int] | None:
    """Return the lowest compute capability of the GPUs among `devices`; None if there is no GPU or it does not tell."""
    import tensorflow as tf

    if not any("GPU" in device for device in devices):
        return None
    details = (tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU"))
    found: list[Any] = [detail.get("compute_capability") for detail in details]
    return min(found) if found and None not in found else None
