"""The closed list of what a file may name and have made: Keras's own classes and functions, by identity.

The list is made of Keras's namespaces and of the modules with its operations. What runs code of a file, reads other
files, or takes functions as arguments is left out. A name that leads here leads to one object, and to no other.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import keras
from keras.src.saving.keras_saveable import KerasSaveable

_CLASSES = (
    *("layers", "losses", "metrics", "optimizers", "optimizers.schedules", "initializers", "regularizers"),
    *("constraints", "dtype_policies", "quantizers", "random", "models"),
)
_FUNCTIONS = ("activations", "losses", "metrics", "initializers", "regularizers", "constraints")
_OPERATIONS = ("core", "einops", "image", "linalg", "math", "nn", "numpy")
_NOT_OBJECTS = {"get", "deserialize", "serialize", "InputSpec"}

PROGRAMS = ("TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")
"""Layers whose configuration is, or points to, a program: a SavedModel, a pickle, functions as bytes."""
_LEFT_OUT = {
    *("Lambda", *PROGRAMS),
    *("GPTQConfig", "AWQConfig"),  # they take a data set and a tokenizer
    *("Map", "Scan", "AssociativeScan", "Switch", "WhileLoop", "ForiLoop", "Cond", "VectorizedMap", "JVP", "Function"),
}


@cache
def known_classes() -> Mapping[str, type]:
    """Return the classes by each dotted name under which Keras finds them itself."""
    found = dict(_classes())
    listed = set(found.values())
    root = {f"keras.{name}": kind for name, kind in vars(keras).items() if inspect.isclass(kind) and kind in listed}
    return {**root, **found}


@cache
def known_functions() -> Mapping[str, Any]:
    """Return the functions by dotted name; `builtins` is Keras's word for its own."""
    return dict(_functions())


@cache
def class_names() -> frozenset[str]:
    """Return the names of the classes without their modules."""
    return frozenset(name.rpartition(".")[2] for name in known_classes())


@cache
def function_names() -> frozenset[str]:
    """Return the names of the functions without their modules."""
    return frozenset(name.rpartition(".")[2] for name in known_functions())


def _classes() -> Iterator[tuple[str, type]]:
    for namespace in _CLASSES:
        for name, found in _members(_namespace(namespace)):
            if inspect.isclass(found):
                yield f"keras.{namespace}.{name}", found
                if issubclass(found, KerasSaveable):  # others it does not find by the module that they are in
                    yield _own_name(found), found
    functional = importlib.import_module("keras.src.models.functional").Functional
    yield _own_name(functional), functional
    for part in _OPERATIONS:
        module = importlib.import_module(f"keras.src.ops.{part}")
        for _, found in _members(module):
            if inspect.isclass(found) and issubclass(found, keras.Operation) and found.__module__ == module.__name__:
                yield _own_name(found), found


def _functions() -> Iterator[tuple[str, Any]]:
    for namespace in _FUNCTIONS:
        for name, found in _members(_namespace(namespace)):
            if not inspect.isclass(found):
                yield f"keras.{namespace}.{name}", found
                yield f"builtins.{name}", found
    for name, _ in _members(keras.activations):
        for place in (keras.ops, keras.ops.nn):
            if hasattr(place, name):
                yield f"{place.__name__}.{name}", getattr(place, name)


def _namespace(dotted: str) -> ModuleType:
    return importlib.import_module(f"keras.{dotted}")


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, found in sorted(vars(module).items()):
        own = callable(found) and str(getattr(found, "__module__", "")).startswith("keras.src.")
        if own and not name.startswith("_") and not {name, found.__name__} & (_LEFT_OUT | _NOT_OBJECTS):
            yield name, found


def _own_name(found: Any) -> str:
    return f"{found.__module__}.{found.__name__}"
