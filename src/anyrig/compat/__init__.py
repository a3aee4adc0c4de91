"""Scripts of older Keras, with their imports changed and nothing else: `from anyrig.compat import tensorflow as tf`.

`tensorflow` and `keras` are the installed ones, in which the names of files that Keras 3 refuses work again. Importing
this package is the consent to that: see `anyrig.compat.habits`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["keras", "tensorflow"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from anyrig.compat import modules

    return getattr(modules, name)
