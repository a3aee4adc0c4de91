"""`model.compile(jit_compile=True)`: XLA compiles the work on one micro-batch, and nothing else.

So the same program runs wherever a virtual replica is, and sums and update stay as they are without XLA. XLA computes
other last bits than TensorFlow's own kernels: a run keeps its numbers only with the same choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from anyrig.errors import UsageError


def asked_for(model: Any) -> bool:
    """Tell whether the user compiled `model` with `jit_compile=True`.

    Keras's "auto" stays uncompiled. Where auto stands for XLA (models that Keras meets with a GPU in sight) the two
    cannot be told apart afterwards, and both stay uncompiled.
    """
    config = getattr(model, "_compile_config", None)
    return bool(config and config.config["jit_compile"]) and not model._resolve_auto_jit_compile()


@contextmanager
def told_by_name(*, compiled: bool) -> Iterator[None]:
    """Turn XLA's refusal of an operation into an error that names `jit_compile`."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if not compiled or "XLA" not in error.message:
            raise
        reasons = [line.strip() for line in error.message.splitlines() if "nsupported" in line or "XLA" in line]
        raise UsageError(
            "ANY-TRAIN-021",
            f"jit_compile=True: XLA cannot compile this model's step: {reasons[0]}",
            hint="compile the model without jit_compile",
        ) from error
