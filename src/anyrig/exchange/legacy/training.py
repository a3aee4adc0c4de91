"""How a model was compiled by Keras 1, 2 or tf.keras, as arguments of today's `compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import keras

from anyrig.exchange.known import known_classes
from anyrig.exchange.legacy import tables
from anyrig.exchange.legacy.translate import accepted, is_function, placed
from anyrig.exchange.trust import Trust, check

Config = Mapping[str, Any]
_BY_OUTPUT = ("accuracy", "acc", "crossentropy", "ce")
_SHORT = frozenset(name for short in ("mse", "mae", "mape", "msle", "kld", "bce") for name in (short, short.upper()))
"""Names that Keras still knows, and reports under."""
_REDUCTIONS = {"auto": "sum_over_batch_size", "AUTO": "sum_over_batch_size"}


class NotTranslatedError(Exception):
    """A part of a compile configuration has no equal; the text says which."""


def compile_arguments(
    stored: Config, trust: Trust, custom: Mapping[str, Any], path: str | PathLike[str], outputs: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments of `compile`; `NotTranslatedError` names what has no equal today.

    `outputs` are the names of the model's outputs. ANY-OPEN-002 and -003 for what `trust` does not allow.
    """
    optimizer = stored.get("optimizer_config", stored.get("optimizer"))
    if optimizer is None:
        raise NotTranslatedError("it names no optimizer")
    found = {
        "optimizer": optimizer_of(optimizer, custom),
        "loss": _each(stored.get("loss"), lambda item: _loss(item, custom)),
        "loss_weights": stored.get("loss_weights"),
        **{
            key: _per_output(_each(stored.get(key), lambda item: _metric(item, custom)), outputs)
            for key in ("metrics", "weighted_metrics")
        },
    }
    check(found, trust, custom, path, exact=True)
    with keras.saving.custom_object_scope(dict(custom)):
        return {key: _each(value, lambda item: _made(item, custom)) for key, value in found.items()}


def optimizer_of(stored: Any, custom: Mapping[str, Any]) -> Any:
    """Return an optimizer's configuration of today, or its name."""
    if isinstance(stored, str):
        stored = {"class_name": stored, "config": {}}
    name, config = _plain_name(stored), dict(stored.get("config") or {})
    if name in custom or stored.get("registered_name") in custom:
        return {**stored, "module": None, "registered_name": name if name in custom else stored["registered_name"]}
    inner = config.get("inner_optimizer", config.get("optimizer"))
    if name.startswith("LossScaleOptimizer") and inner is not None:
        kept = {key: config[key] for key in ("initial_scale", "dynamic_growth_steps") if config.get(key)}
        return placed("optimizers", "LossScaleOptimizer", {**kept, "inner_optimizer": optimizer_of(inner, custom)})
    kind = _class("optimizers", name, keras.optimizers.Optimizer)
    config = {tables.OPTIMIZER_ARGUMENTS.get(key, key): value for key, value in config.items()}
    rate = _rate(config, custom)
    if config.get("epsilon", 0) is None:
        config["epsilon"] = 1e-7
    kept = {**_kept(config, kind, tables.OPTIMIZER_DROPPED, f"the optimizer {name}"), **rate}
    if kept.get("use_ema") is not True:
        kept = {key: value for key, value in kept.items() if not key.startswith(("ema_", "use_ema"))}
    return placed("optimizers", kind.__name__, kept)


def _rate(config: Config, custom: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rate; one that falls by `decay` at each step is a schedule today."""
    rate, decay = config.get("learning_rate"), config.get("decay") or 0.0
    if isinstance(rate, Mapping) and "class_name" in rate:
        name, inner = _plain_name(rate), dict(rate["config"])
        if name in custom:
            return {"learning_rate": dict(rate)}
        kind = _class("optimizers.schedules", name, object)
        inner = {key: value for key, value in inner.items() if key != "name" or value is not None}
        inner = _kept(inner, kind, {}, f"the schedule {name}")
        rate = placed("optimizers.schedules", kind.__name__, inner)
    if decay and not isinstance(rate, Mapping):
        start = 0.01 if rate is None else rate
        inner = {"initial_learning_rate": start, "decay_steps": 1, "decay_rate": decay}
        rate = placed("optimizers.schedules", "InverseTimeDecay", inner)
    return {} if rate is None else {"learning_rate": rate}


def _loss(stored: Any, custom: Mapping[str, Any]) -> Any:
    if isinstance(stored, str) and stored in _SHORT:
        return stored
    if isinstance(stored, Mapping) and stored.get("class_name") != "function":
        name, config = _plain_name(stored), dict(stored.get("config") or {})
        if name in custom:
            return {**stored, "module": None, "registered_name": name}
        function = config.pop("fn", None)
        name = "LossFunctionWrapper" if f"keras.losses.{name}" not in known_classes() and function else name
        if name == "LossFunctionWrapper":
            return _function(function, "loss", custom)
        kind = _class("losses", name, keras.losses.Loss)
        config["reduction"] = _REDUCTIONS.get(str(config.get("reduction")), config.get("reduction"))
        config = {key: value for key, value in config.items() if value is not None}
        return placed("losses", kind.__name__, _kept(config, kind, {}, f"the loss {name}"))
    return _function(stored, "loss", custom)


def _metric(stored: Any, custom: Mapping[str, Any]) -> Any:
    if isinstance(stored, str) and stored in (*_BY_OUTPUT, *_SHORT):
        return stored
    if not isinstance(stored, Mapping) or stored.get("class_name") == "function":
        return _function(stored, "metric", custom)
    name, config = _plain_name(stored), dict(stored.get("config") or {})
    if name in custom:
        return {**stored, "module": None, "registered_name": name}
    function = config.pop("fn", None)
    if name == "MeanMetricWrapper":
        function = _function(function, "metric", custom)
        name = tables.METRIC_OF_FUNCTION.get(function, name)
        if name == "MeanMetricWrapper":
            return placed("metrics", name, {"fn": function, "name": config.get("name")})
        config = {key: value for key, value in config.items() if key in ("name", "dtype")}
    kind = _class("metrics", name, keras.metrics.Metric)
    return placed("metrics", kind.__name__, _kept(config, kind, {}, f"the metric {name}"))


def _function(stored: Any, what: str, custom: Mapping[str, Any]) -> Any:
    if isinstance(stored, Mapping):
        stored = stored.get("config")
    if isinstance(stored, str) and stored in custom:
        return {"module": None, "class_name": "function", "config": stored, "registered_name": stored}
    name = tables.FUNCTIONS_NOW.get(stored, stored) if isinstance(stored, str) else stored
    if not is_function(name):
        raise NotTranslatedError(f"its {what} {name!r} is not Keras's own (custom_objects= hands it over)")
    return name


def _class(module: str, name: str, base: type) -> type:
    found = known_classes().get(f"keras.{module}.{name}") or next(
        (kind for key, kind in known_classes().items() if key.lower() == f"keras.{module}.{name}".lower()), None
    )
    if found is None or not issubclass(found, base):
        raise NotTranslatedError(f"{name} is not among today's keras.{module}")
    return found


def _kept(config: Config, kind: type, dropped: Config, what: str) -> dict[str, Any]:
    arguments, kept = accepted(kind), {}
    for key, value in config.items():
        if key in arguments and key not in dropped:
            kept[key] = value
        elif dropped.get(key) is not tables.ANY and dropped.get(key) != value and value not in (None, False, "auto"):
            raise NotTranslatedError(f"{what} has {key}={value!r}, which Keras 3 does not have")
    return kept


def _plain_name(stored: Config) -> str:
    return str(stored.get("class_name")).removeprefix("Custom>").removeprefix("Addons>")


def _each(value: Any, translate: Callable[[Any], Any]) -> Any:
    """Return a structure with each object, by name or by configuration, translated."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) or (isinstance(value, Mapping) and "class_name" in value):
        return translate(value)
    if isinstance(value, Mapping):
        return {key: _each(item, translate) for key, item in value.items()}
    return [_each(item, translate) for item in value]


def _per_output(value: Any, outputs: Sequence[str]) -> Any:
    """Return metrics that are given for each output: of one output flat, of several without the output's name.

    Keras 2 wrote that name before the metric's, as today's Keras puts it there by itself.
    """
    if isinstance(value, Mapping):
        return {name: _without(item, f"{name}_") for name, item in value.items()}
    if not isinstance(value, list) or len(value) != len(outputs) or not all(isinstance(item, list) for item in value):
        return value
    if len(outputs) == 1:
        return value[0]
    return [_without(item, f"{name}_") for name, item in zip(outputs, value, strict=True)]


def _without(metric: Any, prefix: str) -> Any:
    if isinstance(metric, list):
        return [_without(item, prefix) for item in metric]
    if not isinstance(metric, Mapping) or not str(metric["config"].get("name")).startswith(prefix):
        return metric
    return {**metric, "config": {**metric["config"], "name": metric["config"]["name"].removeprefix(prefix)}}


def _made(item: Any, custom: Mapping[str, Any]) -> Any:
    if not isinstance(item, Mapping):
        return item
    return keras.saving.deserialize_keras_object(item, custom_objects=dict(custom), safe_mode=True)
