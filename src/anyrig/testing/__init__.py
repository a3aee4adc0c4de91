"""The test kit for people who write models: `assert_same_run`, and the form of it for tables of cases.

The names are loaded when they are first used, because the other modules here serve tests that need nothing of training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyrig.testing.same_run import RunCase as RunCase
    from anyrig.testing.same_run import assert_same_run as assert_same_run
    from anyrig.testing.same_run import same_runs as same_runs

__all__ = ["RunCase", "assert_same_run", "same_runs"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'anyrig.testing' has no attribute {name!r}")
    from anyrig.testing import same_run

    return getattr(same_run, name)
