"""The Keras 3 model of a configuration that any Keras wrote, compiled as far as that can be; its weights come later.

What Keras 3 wrote it makes itself, once everything is named as on the closed list. What older ones wrote is made by the
rules of `legacy`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
from keras.src.saving.serialization_lib import SafeModeScope

from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.known import known_classes
from anyrig.exchange.legacy.graph import Builder
from anyrig.exchange.legacy.own import OWN
from anyrig.exchange.legacy.training import NotTranslatedError, compile_arguments
from anyrig.exchange.legacy.translate import Translation, plain_values
from anyrig.exchange.room import our_error, room
from anyrig.exchange.trust import Trust, allows, check
from anyrig.formats.contents import Contents

_MODULES = (
    *("keras.layers", "keras.models", "keras.src.models.functional", "keras.optimizers", "keras.losses"),
    *("keras.metrics", "keras.initializers", "keras.regularizers", "keras.constraints"),
)
_OPERATIONS = tuple(f"keras.src.ops.{part}" for part in ("numpy", "nn", "core", "math", "image", "linalg"))
_FILL = "build the model yourself and fill it: into=, --into FILE.py:FUNCTION"


@dataclass(frozen=True, slots=True)
class Built:
    """A model without its stored weights. `renamed` maps layers' names in the file to those in the model."""

    model: keras.Model
    notes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


def built_model(
    contents: Contents, *, trust: Trust = "known", custom_objects: Mapping[str, Any] | None = None
) -> Built:
    """Return the model that `contents` describes, of Keras 1, 2, tf.keras or 3.

    Raises ANY-OPEN-001 to -007 (trust), -020 (the file has no architecture), -021 (a layer, argument or operation that
    Keras 3 has no equal of), -022 (Keras cannot make the model).
    """
    if contents.config is None:
        raise UsageError(
            "ANY-OPEN-020",
            f"{contents.path} ({contents.words}) holds no architecture, only arrays",
            hint=_FILL,
        )
    config, custom = plain_values(contents.config), dict(custom_objects or {})
    custom |= dict(_by_registered_names([config, plain_values(contents.compile_config)], custom))
    architecture = _without_compilation(config)
    check(architecture, trust, {**custom, **OWN}, contents.path)
    if allows(trust, "code"):
        custom = {**dict(_imported(architecture, custom)), **custom}
    version = keras_version(contents)
    with SafeModeScope(not allows(trust, "program")), room(contents):
        if version >= 3:
            model, notes, renamed = _of_keras_3(architecture, trust, custom, contents), [], {}
        else:
            translation = Translation(version)
            builder = Builder(translation, trust, custom, contents.path)
            model = builder.whole(architecture)
            notes, renamed = translation.notes, builder.renamed
        notes = [*notes, *_compiled(model, contents, version, trust, custom)]
    return Built(model, tuple(notes), renamed)


def keras_version(contents: Contents) -> int:
    """Return the first number of the version of Keras that wrote the file; where it is not said, by its form."""
    said = contents.written_by.get("keras", "")
    if said[:1].isdigit():
        return int(said.split(".")[0])
    return 3 if contents.format == "keras" else 2


def _of_keras_3(config: Any, trust: Trust, custom: Mapping[str, Any], contents: Contents) -> keras.Model:
    config = _with_modules(config, custom)
    objects = {**custom, **OWN}
    check(config, trust, objects, contents.path, exact=True)
    try:
        made = keras.saving.deserialize_keras_object(config, custom_objects=objects)
    except Exception as error:
        if (ours := our_error(error)) is not None:
            raise ours from None
        raise _not_made(contents, str(error)) from error
    if not isinstance(made, keras.Model):
        raise _not_made(contents, f"{type(made).__name__} is no model")
    return made


def _not_made(contents: Contents, why: str) -> AnyrigError:
    lines = [line for line in why.strip().splitlines() if line.strip()]
    cause = next((line for line in lines if line.startswith("Exception encountered")), lines[0] if lines else "")
    return AnyrigError("ANY-OPEN-022", f"{contents.path}: Keras cannot make the model: {cause[:500]}", hint=_FILL)


def _with_modules(value: Any, custom: Mapping[str, Any]) -> Any:
    """Return a configuration in which objects without a module, as in HDF5 files, have the one of their class."""
    if isinstance(value, list):
        return [_with_modules(item, custom) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: _with_modules(item, custom) for key, item in value.items()}
    name = found.get("class_name")
    if isinstance(name, str) and "config" in found and "module" not in found and name not in custom:
        places = (*_OPERATIONS, *_MODULES) if _is_operation(found) else _MODULES
        place = next((place for place in places if f"{place}.{name}" in known_classes()), None)
        found |= {"module": place, "registered_name": None} if place else {}
    return found


def _is_operation(found: Mapping[str, Any]) -> bool:
    """Tell whether a call in a graph is of an operation, which has names that layers have too (`Multiply`)."""
    return "inbound_nodes" in found and isinstance(found["config"], dict) and "trainable" not in found["config"]


def _without_compilation(value: Any) -> Any:
    """Return a configuration without how its models were compiled, which is made apart and may fail."""
    if isinstance(value, Mapping):
        return {key: _without_compilation(item) for key, item in value.items() if key != "compile_config"}
    return [_without_compilation(item) for item in value] if isinstance(value, list) else value


def _imported(value: Any, custom: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the configuration names in modules that are not Keras's; only at the level `code`."""
    if isinstance(value, list):
        for item in value:
            yield from _imported(item, custom)
    elif isinstance(value, Mapping):
        name, module = value.get("class_name"), value.get("module")
        name = value.get("config") if name == "function" else name
        foreign = isinstance(module, str) and module.split(".")[0] not in (
            "keras",
            "tf_keras",
            "tensorflow",
            "builtins",
        )
        if foreign and isinstance(name, str) and name not in custom:
            registered = value.get("registered_name") or name
            try:
                yield str(registered), getattr(importlib.import_module(str(module)), name)
            except (ImportError, AttributeError) as error:
                raise UsageError(
                    "ANY-OPEN-023",
                    f"the file names {module}.{name}, which cannot be imported here: {error}",
                    hint="install it or run where it is, or hand it over: custom_objects=",
                ) from error
        for item in value.values():
            yield from _imported(item, custom)


_NO_OPTIMIZER = "the file does not say with which optimizer (Keras forgets it where the model was saved as .h5 before)"


def _by_registered_names(value: Any, custom: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the caller's classes under the names that the file has them registered by, too."""
    if isinstance(value, Mapping):
        name, registered = value.get("class_name"), value.get("registered_name")
        if isinstance(name, str) and isinstance(registered, str) and name in custom and registered not in custom:
            yield registered, custom[name]
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _by_registered_names(item, custom)


def _scale_loss(model: keras.Model, contents: Contents) -> None:
    """Wrap the optimizer as Keras wrapped it in training: it does not say so, and forgets the model's own precision."""
    scaled = any(tensor.name.startswith("optimizer/inner_optimizer/") for tensor in contents.tensors)
    if scaled and not hasattr(model.optimizer, "inner_optimizer"):
        model.optimizer = keras.optimizers.LossScaleOptimizer(model.optimizer, name="loss_scale_optimizer")
        model.optimizer.build(model.trainable_variables)


def _compiled(
    model: keras.Model, contents: Contents, version: int, trust: Trust, custom: Mapping[str, Any]
) -> Iterator[str]:
    """Compile the model as it was; yield why not, which never stands in the way of its use."""
    stored = plain_values(contents.compile_config)
    if not stored:
        return
    if "optimizer" not in stored and "optimizer_config" not in stored:  # Keras would take its default one
        yield f"it is not compiled: {_NO_OPTIMIZER}"
        return
    if "compile" in vars(type(model)) and "compile_from_config" not in vars(type(model)):
        yield "it is not compiled: its class has a compile() of its own, whose arguments no file has"
        return
    try:
        if version >= 3 and "optimizer_config" not in stored:
            check(stored, trust, {**custom, **OWN}, contents.path, exact=True)
            with keras.saving.custom_object_scope({**custom, **OWN}):
                model.compile_from_config(stored)
            _scale_loss(model, contents)
        else:
            outputs = getattr(model, "output_names", ["output"])  # a Sequential model has one, without a name
            model.compile(**compile_arguments(stored, trust, custom, contents.path, outputs))
    except AnyrigError as error:
        yield f"it is not compiled: {error.message}"
    except NotTranslatedError as error:
        yield f"it is not compiled: {error}"
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        yield f"it is not compiled: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
