"""Train a Keras model on whatever devices are there, stop anywhere, carry on anywhere else, with the same numbers.

The public names are loaded when they are first used, so that `import anyrig` costs nothing and TensorFlow is imported
only by what trains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyrig.checkpoints import digest as digest
    from anyrig.checkpoints import load as load
    from anyrig.checkpoints import save as save
    from anyrig.diagnose.diff import diff as diff
    from anyrig.diagnose.inspect import inspect as inspect
    from anyrig.errors import AnyrigError as AnyrigError
    from anyrig.errors import Stopped as Stopped
    from anyrig.exchange.convert import convert as convert
    from anyrig.exchange.open import open_model as open_model
    from anyrig.exchange.save import save_model as save_model
    from anyrig.report.loggers import loggers as loggers
    from anyrig.report.profile import Profile as Profile
    from anyrig.train.batch import Batch as Batch
    from anyrig.train.callback import Checkpoint as Checkpoint
    from anyrig.train.following import wait as wait
    from anyrig.train.limits import Limits as Limits
    from anyrig.train.parity.run import parity as parity
    from anyrig.train.phases import Phase as Phase
    from anyrig.train.rig import Rig as Rig
    from anyrig.train.run import Run as Run
    from anyrig.train.step.losses import loss_rule as loss_rule
    from anyrig.train.step.merging import merge_rule as merge_rule
    from anyrig.train.tune import tune_lr as tune_lr

_HOMES = {
    "AnyrigError": "anyrig.errors",
    "Batch": "anyrig.train.batch",
    "Checkpoint": "anyrig.train.callback",
    "Limits": "anyrig.train.limits",
    "Phase": "anyrig.train.phases",
    "Profile": "anyrig.report.profile",
    "Rig": "anyrig.train.rig",
    "Run": "anyrig.train.run",
    "Stopped": "anyrig.errors",
    "convert": "anyrig.exchange.convert",
    "diff": "anyrig.diagnose.diff",
    "digest": "anyrig.checkpoints",
    "inspect": "anyrig.diagnose.inspect",
    "load": "anyrig.checkpoints",
    "loss_rule": "anyrig.train.step.losses",
    "loggers": "anyrig.report.loggers",
    "merge_rule": "anyrig.train.step.merging",
    "open_model": "anyrig.exchange.open",
    "parity": "anyrig.train.parity.run",
    "save": "anyrig.checkpoints",
    "save_model": "anyrig.exchange.save",
    "tune_lr": "anyrig.train.tune",
    "wait": "anyrig.train.following",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  (each name is found by __getattr__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("anyrig")
    if name not in _HOMES:
        raise AttributeError(f"module 'anyrig' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
