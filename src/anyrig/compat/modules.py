"""`tensorflow` and `keras` with a few names of their own; every other name is looked up in the real modules."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import keras as real_keras
import tensorflow as real_tensorflow

from anyrig.compat import habits


class Facade(ModuleType):
    """A module that has the names in `own`, and else those of `module`."""

    def __init__(self, module: Any, own: dict[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(own)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__dict__["_module"]), *self.__dict__})


habits.accept_old_names()
_LOADS = {"load_model": habits.load_model, "save_model": habits.save_model}
keras = Facade(
    real_keras,
    {
        "callbacks": Facade(real_keras.callbacks, {"ModelCheckpoint": habits.ModelCheckpoint}),
        "models": Facade(real_keras.models, _LOADS),
        "saving": Facade(real_keras.saving, _LOADS),
        "mixed_precision": Facade(
            real_keras.mixed_precision, {"LossScaleOptimizer": real_keras.optimizers.LossScaleOptimizer}
        ),
    },
)
tensorflow = Facade(real_tensorflow, {"keras": keras})
