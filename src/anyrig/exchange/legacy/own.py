"""What older Keras computed and today's does not, as functions that Keras saves by a registered name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras


@keras.saving.register_keras_serializable("anyrig")
def hard_sigmoid_of_keras_2(x: Any) -> Any:
    """Return 0.2 x + 0.5 within 0 and 1, which Keras 1 and 2 call `hard_sigmoid`; Keras 3 divides by 6."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


OWN: Mapping[str, Any] = {"anyrig>hard_sigmoid_of_keras_2": hard_sigmoid_of_keras_2}
"""By the names under which a configuration may name them."""
