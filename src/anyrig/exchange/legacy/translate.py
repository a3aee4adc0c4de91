"""A layer's configuration of Keras 1, 2 or tf.keras in today's words: JSON in, JSON out, nothing is made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyrig.errors import UsageError
from anyrig.exchange.known import known_classes, known_functions
from anyrig.exchange.legacy import tables

Config = dict[str, Any]
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")


def no_equal(where: str, what: str) -> UsageError:
    """Return the error for something that today's Keras has no equal of."""
    return UsageError(
        "ANY-OPEN-021",
        f"the layer {where!r} has {what}",
        hint="build the model yourself and fill it: into=, --into FILE.py:FUNCTION",
    )


@dataclass(slots=True)
class Translation:
    """Turns names, arguments and values of then into those of now; `notes` tell what has no effect and went."""

    keras: int
    notes: list[str] = field(default_factory=list)

    def layer(self, name: str, config: Mapping[str, Any], where: str) -> tuple[str, Config]:
        """Return class and configuration of a layer; `where` is its path for errors (ANY-OPEN-021)."""
        now = tables.CLASSES_NOW.get(name, name)
        if now in tables.NO_EQUAL or f"keras.layers.{now}" not in known_classes():
            raise no_equal(where, f"the class {name}, {tables.NO_EQUAL.get(now, 'which Keras 3 does not have')}")
        renamed = _renamed(now, _with_sizes(config))
        renamed = {**tables.THEN.get(now, {}), **renamed, **tables.MEANT.get(name, {})}
        if now in tables.INTEGERS_OUT and str(policy(renamed.get("dtype"))).startswith(("int", "uint")):
            renamed.pop("dtype")
        kind = known_classes()[f"keras.layers.{now}"]
        kept = self._kept(now, renamed, accepted(kind), where)
        return now, {key: self.argument(key, value, where) for key, value in kept.items()}

    def _kept(self, name: str, config: Config, arguments: frozenset[str], where: str) -> Config:
        dropped = {**tables.DROPPED["*"], **tables.DROPPED.get(name, {})}
        kept = {}
        for key, value in config.items():
            if key in arguments:
                kept[key] = value
            elif dropped.get(key, ...) is tables.ANY or _same(dropped.get(key, ...), value):
                continue
            elif key not in dropped and value in _NOTHING:
                self.notes.append(f"{where}: {key}={value!r} was left out, which Keras no longer has")
            else:
                raise no_equal(where, f"{key}={value!r}, which the layer {name} of Keras 3 does not have")
        return kept

    def argument(self, key: str, value: Any, where: str) -> Any:
        """Return the value of an argument of a layer."""
        if key in tables.INNER_LAYERS:
            return value
        if key == "dtype":
            return policy(value)
        if key == "axis" and isinstance(value, list) and len(value) == 1:
            return value[0]
        if key in tables.VALUES_NOW and isinstance(value, str | bool | None):
            return tables.VALUES_NOW[key].get(value, value)
        for end, translate in (
            ("initializer", self.initializer),
            ("regularizer", self.regularizer),
            ("constraint", self.constraint),
            ("activation", self.activation),
        ):
            if key.endswith(end):
                return translate(value, where)
        return value

    def activation(self, value: Any, where: str) -> Any:
        """Return an activation by its name of now; a layer used as one (`ReLU`) by its configuration."""
        if isinstance(value, Mapping) and value.get("class_name") == "function":
            value = value.get("registered_name") if value.get("module") is None else value["config"]
        if isinstance(value, Mapping) and "class_name" in value:
            name, config = self.layer(value["class_name"], value.get("config") or {}, where)
            return placed("layers", name, config)
        if self.keras < 3:
            value = tables.ACTIVATIONS_BEFORE_3.get(value, value)
        return tables.FUNCTIONS_NOW.get(value, value)

    def initializer(self, value: Any, where: str) -> Any:
        """Return an initializer; what it does not know is left out, because stored weights replace what it makes."""
        if isinstance(value, str):
            return tables.INITIALIZERS_NOW.get(value, value)
        if not isinstance(value, Mapping):
            return value
        name = _named(value, tables.INITIALIZERS_NOW)
        kind = known_classes().get(f"keras.initializers.{name}")
        if kind is None:
            self.notes.append(f"{where}: the initializer {name} is not Keras's own; new weights would start as zeros")
            return "zeros"
        config = {key: item for key, item in _inner(value).items() if key in accepted(kind)}
        if config.get("distribution") == "normal":
            config["distribution"] = "truncated_normal"
        return placed("initializers", name, config)

    def regularizer(self, value: Any, where: str) -> Any:
        """Return a regularizer of any form."""
        if isinstance(value, str):
            return tables.REGULARIZERS_NOW.get(value, value)
        return self._simple("regularizers", tables.REGULARIZERS_NOW, value, where)

    def constraint(self, value: Any, where: str) -> Any:
        """Return a constraint of any form."""
        if isinstance(value, str):
            return tables.CONSTRAINTS_NOW.get(value, value)
        return self._simple("constraints", tables.CONSTRAINTS_NOW, value, where)

    def _simple(self, module: str, names: Mapping[str, str], value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            return value
        name = _named(value, names)
        kind = known_classes().get(f"keras.{module}.{name}")
        if kind is None:
            raise no_equal(where, f"{name} among its {module}, which is not Keras's own")
        config = {tables.CONSTRAINT_ARGUMENTS.get(key, key): item for key, item in _inner(value).items()}
        return placed(module, name, self._kept(name, config, accepted(kind), where))


def placed(module: str, name: str, config: Mapping[str, Any]) -> Config:
    """Return the configuration of an object of Keras's own, in its words of today."""
    return {"module": f"keras.{module}", "class_name": name, "config": dict(config), "registered_name": None}


def policy(value: Any) -> Any:
    """Return a policy of dtypes by its name; None for one that follows the inputs."""
    if isinstance(value, Mapping):
        value = _inner(value).get("name")
    return None if value in ("infer", "_infer") else value


def accepted(kind: type) -> frozenset[str]:
    """Return the arguments that a class can be made with, those that it hands to its bases included."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        names |= {item.name for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)}
        if not any(item.kind is item.VAR_KEYWORD for item in parameters):
            break
    return frozenset(names - {"self"})


def is_function(name: Any) -> bool:
    """Tell whether a name is that of a function of Keras's own."""
    return isinstance(name, str) and f"builtins.{name}" in known_functions()


def plain_values(value: Any) -> Any:
    """Return a configuration without the marks for tuples and shapes that SavedModels have."""
    if isinstance(value, Mapping):
        if value.get("class_name") in ("__tuple__", "TensorShape"):
            return plain_values(list(value.get("items") or []))
        return (
            None if value.get("class_name") == "TypeSpec" else {key: plain_values(item) for key, item in value.items()}
        )
    return [plain_values(item) for item in value] if isinstance(value, list | tuple) else value


def _same(wanted: Any, value: Any) -> bool:
    return wanted is not ... and (value == wanted or value is wanted)


def _named(value: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return the class of an object, which Keras 1 wrote among the arguments, as `name`."""
    name = str(value.get("class_name", value.get("name")))
    return names.get(name, name)


def _inner(value: Mapping[str, Any]) -> Config:
    if "class_name" in value:
        return dict(value.get("config") or {})
    return {key: item for key, item in value.items() if key != "name"}


def _with_sizes(config: Mapping[str, Any]) -> Config:
    for names in tables.KERNEL_SIZES:
        if names[0] in config:
            rest = {key: value for key, value in config.items() if key not in names}
            return {**rest, "kernel_size": [config[name] for name in names]}
    return dict(config)


def _renamed(name: str, config: Mapping[str, Any]) -> Config:
    names = {**tables.ARGUMENTS_NOW["*"], **tables.ARGUMENTS_NOW.get(name, {})}
    return {names.get(key, key): value for key, value in config.items()}
