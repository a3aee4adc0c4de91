"""Makes the Keras 3 model of a configuration of Keras 1, 2 or tf.keras: layers by their translation, then the calls.

The configuration has passed the check of trust before it comes here; what the translation gives is checked again, with
today's names, before each layer is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import keras

from anyrig.errors import AnyrigError
from anyrig.exchange.known import known_classes
from anyrig.exchange.legacy import tables
from anyrig.exchange.legacy.merge import merged
from anyrig.exchange.legacy.nodes import Call, Reference, call_of, filled, references, structure
from anyrig.exchange.legacy.operations import FUNCTIONS
from anyrig.exchange.legacy.own import OWN
from anyrig.exchange.legacy.raw_operations import NODES, node_of, with_constants
from anyrig.exchange.legacy.sizes import compare_sizes, told_size
from anyrig.exchange.legacy.translate import Translation, no_equal, policy
from anyrig.exchange.room import our_error
from anyrig.exchange.trust import Trust, check

Config = Mapping[str, Any]
_FUNCTIONS = ("activation", "initializer", "regularizer", "constraint")
_MODELS = ("Sequential", "Functional", "Model", "ModelV2", "Network", "Container")


class _NotYet(Exception):
    """A tensor that a call needs is made by a call that comes later."""


@dataclass(slots=True)
class Builder:
    """Makes models; `renamed` maps the names of layers that Keras does not allow to those that they have now."""

    translation: Translation
    trust: Trust
    custom: Mapping[str, Any]
    path: str | PathLike[str]
    renamed: dict[str, str] = field(default_factory=dict)
    told: list[tuple[Any, str, Any]] = field(default_factory=list)

    def whole(self, stored: Config) -> keras.Model:
        """Return the model of a file's configuration, with layers that make the sizes which the file says."""
        model = self.model(stored)
        compare_sizes(self.told)
        return model

    def model(self, stored: Config, where: str = "") -> keras.Model:
        """Return the model of a configuration, without its stored weights."""
        if stored.get("class_name") == "Sequential":
            return self._sequential(stored["config"], where)
        if stored.get("class_name") in _MODELS and "layers" in stored["config"]:
            return self._functional(stored["config"], where)
        made = self.layer(stored, where)
        if not isinstance(made, keras.Model):
            raise self._broken(where, f"{stored.get('class_name')} is no model")
        return made

    def layer(self, stored: Config, where: str) -> Any:
        """Return a layer, which may be a model; or the function that stands for one of TensorFlow's."""
        name = stored["class_name"]
        config = dict(stored.get("config") or {}) if isinstance(stored.get("config"), Mapping) else stored["config"]
        where = self._inside(where, stored, name)
        custom = next((key for key in (stored.get("registered_name"), name) if key in self.custom), None)
        if custom is not None:
            return self._custom(custom, config, where)
        if name in _MODELS and (name == "Sequential" or "layers" in config):
            if isinstance(config, list):
                config = {"name": stored.get("name"), "layers": config}
            return self.model({"class_name": name, "config": config}, where)
        if name in ("TFOpLambda", "SlicingOpLambda"):
            return self._operation(config, where)
        if name == "TensorFlowOpLayer":
            return self._node(config, where)
        if name == "Merge":
            return merged(config, where)
        if name == "Lambda":
            return self._lambda(config, where)
        if name == "TimeDistributedDense":
            inner = {**config, "name": f"{config.get('name', name)}_inner"}
            name, config = "TimeDistributed", {**config, "layer": {"class_name": "Dense", "config": inner}}
            config = {key: value for key, value in config.items() if key in ("name", "trainable", "layer")}
        return self._known(name, config, where)

    def _known(self, name: str, config: dict[str, Any], where: str) -> Any:
        if name == "InputLayer":
            shape = config.get("batch_input_shape", config.get("batch_shape"))
            config = {**config, "batch_shape": shape, "dtype": policy(config.get("dtype") or config.get("input_dtype"))}
        inner = {key: config.pop(key) for key in tables.INNER_LAYERS if config.get(key) is not None}
        now, translated = self.translation.layer(name, config, where)
        if name == "InputLayer":
            translated["batch_shape"] = shape
        check(translated, self.trust, {**self.custom, **OWN}, self.path, exact=True)
        made = {key: self._inner(value, where) for key, value in inner.items()}
        translated = {
            key: self._function(key, value) for key, value in translated.items() if value is not None or key != "dtype"
        }
        translated = self._with_name(translated)
        kind = known_classes()[f"keras.layers.{now}"]
        layer = self._made(kind, {**made, **translated}, where)
        if (size := told_size(name, config)) is not None:
            self.told.append((layer, where, size))
        return layer

    def _function(self, key: str, value: Any) -> Any:
        """Return the function that a name means where it is ours or the caller's."""
        if isinstance(value, str) and key.endswith(_FUNCTIONS):
            return OWN.get(value, self.custom.get(value, value))
        return value

    def _inner(self, value: Any, where: str) -> Any:
        return [self.layer(item, where) for item in value] if isinstance(value, list) else self.layer(value, where)

    def _made(self, kind: type, arguments: dict[str, Any], where: str) -> Any:
        try:
            with keras.saving.custom_object_scope({**self.custom, **OWN}):
                return kind(**arguments)
        except Exception as error:
            raise self._failed(where, "Keras cannot make it: ", error) from error

    def _custom(self, key: str, config: Any, where: str) -> Any:
        """Return what the caller handed over for a class, made of the file's configuration as it is."""
        kind = self.custom[key]
        values = {k: v for k, v in config.items() if k not in ("batch_input_shape", "dtype")}
        if policy(config.get("dtype")) is not None:
            values["dtype"] = policy(config["dtype"])
        values = self._with_name(values)
        try:
            with keras.saving.custom_object_scope({**self.custom, **OWN}):
                return kind.from_config(values) if hasattr(kind, "from_config") else kind(**values)
        except Exception as error:
            raise self._failed(where, f"{key} cannot be made of its configuration: ", error) from error

    def _lambda(self, config: Config, where: str) -> keras.Layer:
        """Return a Lambda of a function that the caller handed over, by the layer's name or by the function's."""
        named = config.get("function")
        function = self.custom.get(config["name"], self.custom.get(named) if isinstance(named, str) else None)
        if function is None:
            repair = f"hand over the function: custom_objects={{{config['name']!r}: FUNCTION}}"
            raise no_equal(where, f"a Lambda, whose code is of another Python and another Keras; {repair}")
        arguments = config.get("arguments") or {}
        return self._made(
            keras.layers.Lambda,
            self._with_name({"function": function, "arguments": arguments, "name": config["name"]}),
            where,
        )

    def _with_name(self, config: dict[str, Any]) -> dict[str, Any]:
        name = config.get("name")
        if isinstance(name, str) and "/" in name:
            new = name.replace("/", "_")
            while new in self.renamed.values() and self.renamed.get(name) != new:
                new += "_"
            self.renamed[name] = new
            return {**config, "name": new}
        return config

    def _operation(self, config: Config, where: str) -> Callable[..., Any]:
        function = FUNCTIONS.get(str(config["function"]))
        if function is None:
            raise no_equal(where, f"the TensorFlow function {config['function']}, which has no rule here")
        return function

    def _node(self, config: Config, where: str) -> Callable[..., Any]:
        kernel, attributes = node_of(config)
        operation = NODES.get(kernel)
        if operation is None:
            raise no_equal(where, f"the TensorFlow operation {kernel}, which has no rule here")
        constants = config.get("constants")
        return lambda x: operation(attributes, *with_constants(x if isinstance(x, list) else [x], constants))

    def _sequential(self, config: Any, where: str) -> keras.Model:
        config = {"layers": config} if isinstance(config, list) else config
        stored, name = config["layers"], config.get("name")
        if stored and stored[0]["class_name"] == "Merge":
            return self._merged_branches(stored, name, where)
        model = keras.Sequential(**self._with_name({"name": name}))
        if stored and (given := _given_inputs(stored[0])) is not None:
            model.add(given)
        for item in stored:
            layer = self.layer(item, where)
            try:
                model.add(layer)
            except Exception as error:
                raise self._failed(self._inside(where, item, ""), "", error) from error
        if not model.built and config.get("build_input_shape"):
            model.build(config["build_input_shape"])
        return model

    def _merged_branches(self, stored: Sequence[Config], name: str | None, where: str) -> keras.Model:
        """Return a model of Keras 1 that begins with several models side by side."""
        branches = [self.model(item, where) for item in stored[0]["config"].get("layers") or []]
        outputs = merged(stored[0]["config"], where)([branch.outputs[0] for branch in branches])
        for item in stored[1:]:
            outputs = self.layer(item, where)(outputs)
        return keras.Model([branch.inputs[0] for branch in branches], outputs, name=name)

    def _functional(self, config: Config, where: str) -> keras.Model:
        stored = {str(item.get("name") or item["config"]["name"]): item for item in config["layers"]}
        if len(stored) != len(config["layers"]):
            raise self._broken(where, "two layers have one name")
        try:
            inputs, outputs = (structure(config[key], stored) for key in ("input_layers", "output_layers"))
            calls = {
                name: [call_of(node, stored) for node in item.get("inbound_nodes") or []]
                for name, item in stored.items()
            }
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise self._failed(where, "its graph has ", error) from error
        layers = {name: self.layer(item, where) for name, item in stored.items()}
        tensors = _Tensors(calls, list(references([inputs, outputs])))
        self._run(layers, calls, tensors, where)
        try:
            model = keras.Model(
                _alone(filled(inputs, tensors.of)), _alone(filled(outputs, tensors.of)),
                **self._with_name({"name": config.get("name")}),
            )  # fmt: skip
        except Exception as error:
            raise self._failed(where, "Keras cannot make it: ", error) from error
        if config.get("trainable") is False:
            model.trainable = False
        return model

    def _run(self, layers: Mapping[str, Any], calls: Mapping[str, list[Call]], tensors: _Tensors, where: str) -> None:
        waiting = [(name, call) for name in layers for call in calls[name]]
        for name, layer in layers.items():
            if isinstance(layer, keras.layers.InputLayer):
                tensors.made[name].append([layer.output])
        while waiting:
            left = []
            for name, call in waiting:
                try:
                    first, others = filled([call.first, dict(call.others)], tensors.of)
                except _NotYet:
                    left.append((name, call))
                    continue
                place = f"{where}/{name}".lstrip("/")
                if not _all(call):
                    raise self._broken(place, "it is called without any input of the model")
                tensors.made[name].append(_flat(self._called(layers[name], first, others, place)))
            if len(left) == len(waiting):
                raise self._broken(where, f"its graph never reaches {left[0][0]!r}")
            waiting = left

    def _called(self, layer: Any, first: Any, others: dict[str, Any], where: str) -> Any:
        if isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional) and isinstance(first, list):
            first, others = first[0], {**others, "initial_state": first[1:]}
        if isinstance(layer, keras.Layer):
            others = _accepted(layer, others, where)
        try:
            return layer(first, **others)
        except Exception as error:
            raise self._failed(where, "Keras cannot call it: ", error) from error

    def _inside(self, where: str, stored: Config, otherwise: str) -> str:
        config = stored.get("config")
        name = stored.get("name") or (config.get("name") if isinstance(config, Mapping) else None) or otherwise
        return f"{where}/{name}".lstrip("/")

    def _failed(self, where: str, what: str, error: Exception) -> AnyrigError:
        return our_error(error) or self._broken(where, what + _first_line(error))

    def _broken(self, where: str, what: str) -> AnyrigError:
        return AnyrigError(
            "ANY-OPEN-022",
            f"{self.path}: {where or 'the model'}: {what}",
            hint="build the model yourself and fill it: into=, --into FILE.py:FUNCTION",
        )


class _Tensors:
    """The tensors of calls that were made. Older Keras numbers the calls of a model within a model from 1."""

    def __init__(self, calls: Mapping[str, list[Call]], ends: list[Reference]) -> None:
        self.made: dict[str, list[list[Any]]] = {name: [] for name in calls}
        used = [*ends, *(found for made in calls.values() for call in made for found in _all(call))]
        self.first = {name: min((item.call for item in used if item.layer == name), default=0) for name in calls}

    def of(self, reference: Reference) -> Any:
        """Return the tensor, or raise `_NotYet`."""
        made = self.made[reference.layer]
        number = reference.call - self.first[reference.layer]
        if number >= len(made) or reference.output >= len(made[number]):
            raise _NotYet
        return made[number][reference.output]


def _all(call: Call) -> list[Reference]:
    return list(references([call.first, dict(call.others)]))


def _accepted(layer: keras.Layer, others: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the arguments of a call that the layer of today takes; one of then that is None says nothing."""
    parameters = inspect.signature(layer.call).parameters
    takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    kept = {}
    for key, value in others.items():
        if takes_all or key in parameters:
            kept[key] = value
        elif value is not None and key != "name" and not (key == "training" and value is False):
            raise no_equal(where, f"the argument {key}={value!r} of its call, which Keras 3 does not have")
    return {key: value for key, value in kept.items() if value is not None or key not in ("training", "mask")}


def _given_inputs(first: Config) -> Any:
    """Return the input that the first layer of a Sequential model describes, if it is not one itself."""
    config = first.get("config")
    if first["class_name"] == "InputLayer" or not isinstance(config, Mapping):
        return None
    shape = config.get("batch_input_shape")
    if shape is None and config.get("input_dim") is not None and first["class_name"] != "Embedding":
        steps = [config.get("input_length")] if "input_length" in config else []
        shape = [None, *steps, config["input_dim"]]
    if shape is None:
        return None
    kind = policy(config.get("input_dtype") or config.get("dtype")) or "float32"
    return keras.Input(
        batch_shape=tuple(shape), dtype=kind.removeprefix("mixed_") if "mixed" not in kind else "float32"
    )


def _alone(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _flat(value: Any) -> list[Any]:
    return list(keras.tree.flatten(value))


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    cause = next((line.partition(":")[2].strip() for line in lines if line.startswith("Exception encountered")), "")
    return cause or (lines[0] if lines else type(error).__name__)
