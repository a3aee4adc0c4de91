"""What a configuration may name: hostile ones are refused at every level of trust below the one that they need.

Each hostile case is one lesson of a public report about Keras's own loaders, whose number its name has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras.src.saving import serialization_lib

from anyrig.errors import AnyrigError
from anyrig.exchange.known import known_classes, known_functions
from anyrig.exchange.trust import LEVELS, Trust, check

Config = dict[str, Any]
BYTES = {"class_name": "__lambda__", "config": {"code": "4wAAAA==", "defaults": None, "closure": None}}


def layer(name: str, module: str | None = "keras.layers", /, **config: Any) -> Config:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def function(module: str | None, name: str) -> Config:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def old(name: str, /, **config: Any) -> Config:
    return {"class_name": name, "config": config}


HOSTILE: dict[str, tuple[Config, Trust, str]] = {
    "CVE_2024_3660_byte_code_of_a_lambda_layer": (layer("Lambda", function=BYTES), "program", "OPEN-003"),
    "CVE_2024_3660_byte_code_of_keras_1": (
        old("Lambda", name="evil", function=["4wAA", None, None], function_type="lambda"),
        "program",
        "OPEN-003",
    ),
    "CVE_2025_1550_any_module_and_function": (function("os", "system"), "code", "OPEN-002"),
    "CVE_2025_1550_any_module_and_class": (layer("Popen", "subprocess", args="id"), "code", "OPEN-002"),
    "CVE_2025_1550_a_known_name_in_another_module": (layer("Dense", "evil.layers", units=1), "code", "OPEN-002"),
    "CVE_2025_1550_builtins": (function("builtins", "eval"), "code", "OPEN-002"),
    "CVE_2025_8747_gadget_within_keras": (
        layer("Lambda", function=function("keras.utils", "get_file"), arguments={"origin": "http://x/y"}),
        "code",
        "OPEN-002",
    ),
    "CVE_2025_8747_gadget_as_activation": (
        layer("Dense", units=1, activation=function("keras.utils", "get_file")),
        "code",
        "OPEN-002",
    ),
    "CVE_2025_8747_model_loader_as_function": (function("keras.models", "load_model"), "code", "OPEN-002"),
    "CVE_2025_8747_old_lambda_by_name": (
        old("Lambda", name="x", function="get_file", function_type="function", module="keras.utils.data_utils"),
        "code",
        "OPEN-002",
    ),
    "CVE_2025_9906_the_switch_of_safe_mode": (
        layer("Dense", units=1, activation=function("keras.config", "enable_unsafe_deserialization")),
        "code",
        "OPEN-002",
    ),
    "CVE_2025_49655_pickle": (layer("TorchModuleWrapper", module={"a": 1}), "program", "OPEN-003"),
    "CVE_2025_49655_functions_of_jax": (layer("JaxLayer", call_fn="x"), "program", "OPEN-003"),
    "CVE_2025_12058_local_file": (layer("StringLookup", vocabulary="/etc/passwd"), "code", "OPEN-004"),
    "CVE_2025_12058_address": (layer("TextVectorization", vocabulary="http://x/v.txt"), "code", "OPEN-004"),
    "CVE_2025_12058_old_form": (old("IntegerLookup", vocabulary="/etc/passwd"), "code", "OPEN-004"),
    "CVE_2026_1462_saved_model": (layer("TFSMLayer", filepath="evil"), "program", "OPEN-003"),
    "CVE_2026_1462_old_form": (old("TFSMLayer", filepath="evil"), "program", "OPEN-003"),
    "typespec_resolves_any_class": (
        {"class_name": "__typespec__", "spec_name": "x", "module": "os", "registered_name": "x", "config": []},
        "program",
        "OPEN-003",
    ),
    "function_that_takes_functions": (layer("Map", "keras.src.ops.core", function="x"), "code", "OPEN-002"),
    "registered_name_before_the_class": (
        {"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": "evil>Gadget"},
        "code",
        "OPEN-002",
    ),
    "layers_of_another_package": (layer("Tokenizer", "keras_hub.tokenizers", proto="x"), "code", "OPEN-002"),
}

AROUND: dict[str, Callable[[Config], Config]] = {
    "alone": lambda bad: bad,
    "model_in_model": lambda bad: layer(
        "Functional",
        "keras.src.models.functional",
        name="outer",
        layers=[layer("Sequential", "keras.models", name="inner", layers=[layer("Flatten"), bad])],
    ),
    "keras_1_list": lambda bad: {"class_name": "Sequential", "config": [old("Dense", output_dim=3), bad]},
    "wrapper": lambda bad: layer("Bidirectional", name="both", layer=layer("RNN", cell=layer("X", "keras") | bad)),
    "compiled_loss": lambda bad: {"optimizer": "adam", "loss": {"first": ["mse", bad]}, "metrics": [[bad]]},
    "text_layer": lambda bad: layer("TextVectorization", standardize=bad),
    "json_in_text": lambda bad: layer("Dense", note=json.dumps(json.dumps({"inner": [bad]}))),
    "build_config": lambda bad: layer("Dense", units=1) | {"build_config": {"input_shape": [bad]}},
    "call_argument": lambda bad: layer("Add") | {"inbound_nodes": [{"args": [], "kwargs": {"mask": bad}}]},
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("case", HOSTILE)
def test_B207_hostile_configurations_are_refused_below_the_level_that_they_need(case: str, around: str) -> None:
    bad, needs, code = HOSTILE[case]
    config = AROUND[around](bad)
    for trust in LEVELS[1 : LEVELS.index(needs)]:
        for exact in (False, True):
            with pytest.raises(AnyrigError, match="OPEN-00[234]" if exact else code) as refused:
                check(json.loads(json.dumps(config)), trust, path="file.keras", exact=exact)
            assert "file.keras" in str(refused.value)
            assert "next: " in str(refused.value)
    check(config, needs, path="file.keras")


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_configurations_make_nothing_at_the_level_of_arrays(case: str) -> None:
    with pytest.raises(AnyrigError, match="OPEN-001"):
        check(HOSTILE[case][0], "arrays")


def test_CVE_2025_9906_and_23048_no_global_setting_changes_the_level() -> None:
    keras.config.enable_unsafe_deserialization()
    try:
        with pytest.raises(AnyrigError, match="OPEN-003"):
            check(layer("Lambda", function=BYTES))
        with serialization_lib.SafeModeScope(False), pytest.raises(AnyrigError, match="OPEN-003"):
            check(layer("Lambda", function=BYTES))
    finally:
        keras.src.backend.common.global_state.set_global_attribute("safe_mode_saving", None)


def test_23654_a_level_that_there_is_not_allows_nothing() -> None:
    for trust in (None, False, "", "KNOWN", "all"):
        with pytest.raises(AnyrigError, match="OPEN-006"):
            check(layer("Dense", units=1), trust)  # type: ignore[arg-type]


def test_23303_depth_and_number_are_bounded() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    wide = layer("Dense", units=[0] * 2_000_001)
    text = layer("Dense", units="[" * 100_000)
    for config in (layer("Dense", units=deep), wide, text):
        with pytest.raises(AnyrigError, match="OPEN-005"):
            check(config)


@pytest.mark.parametrize(
    "config",
    [
        {"class_name": 5, "config": {}},
        {"class_name": ["Dense"], "config": {}},
        {"class_name": "Dense", "module": {"a": 1}, "config": {}},
        {"class_name": "function", "config": {"a": 1}, "module": "builtins"},
        {"class_name": "Dense", "config": {"units": b"3"}},
        {"class_name": "Dense", "config": {3: 3}},
    ],
)
def test_what_keras_does_not_write_is_refused(config: Any) -> None:
    with pytest.raises(AnyrigError, match="OPEN-007"):
        check(config)


def test_the_place_is_named_by_the_names_of_layers() -> None:
    config = AROUND["model_in_model"](layer("Lambda", name="resize", function=BYTES))
    with pytest.raises(AnyrigError, match=r"outer/inner/resize: a Lambda with Python code"):
        check(config)


def test_what_the_caller_hands_over_is_allowed_by_its_name_alone() -> None:
    config = layer("Own", "somewhere.layers", units=1, activation=function("builtins", "my_act"))
    config["registered_name"] = "pack>Own"
    handed = {"pack>Own": keras.layers.Dense, "my_act": keras.ops.relu}
    check(config, custom_objects=handed)
    check(config, custom_objects={"Own": keras.layers.Dense, "my_act": keras.ops.relu}, exact=True)
    with pytest.raises(AnyrigError, match="my_act"):
        check(config, custom_objects={"Own": keras.layers.Dense})
    with pytest.raises(AnyrigError, match=r"somewhere\.layers\.Own"):
        check(config, custom_objects={"my_act": keras.ops.relu})


def test_registered_objects_are_not_handed_over_by_text() -> None:
    keras.saving.get_custom_objects()["pack>act"] = keras.ops.relu
    try:
        with pytest.raises(AnyrigError, match="pack>act"):
            check(layer("Dense", units=1, activation="pack>act"))
        check(layer("Dense", units=1, activation="pack>act"), custom_objects={"pack>act": keras.ops.relu})
    finally:
        del keras.saving.get_custom_objects()["pack>act"]


def test_a_listed_name_leads_keras_to_the_listed_object_and_no_other() -> None:
    found = {name: _found_by_keras(name, "class") for name in known_classes()}
    assert {name: kind for name, kind in found.items() if kind not in (None, known_classes()[name])} == {}
    assert sum(kind is None for kind in found.values()) < len(found) / 20
    for name, function in known_functions().items():
        assert _found_by_keras(name, "function") in (None, function)


def _found_by_keras(name: str, kind: str) -> Any:
    module, _, plain = name.rpartition(".")
    try:
        return serialization_lib._retrieve_class_or_fn(plain, "function", module, kind, {}, {})
    except (ValueError, TypeError):
        return None


def test_nothing_on_the_list_runs_code_or_takes_a_function_to_call() -> None:
    names = {kind.__name__ for kind in known_classes().values()} | {f.__name__ for f in known_functions().values()}
    forbidden = ("Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "Map", "Scan", "WhileLoop")
    assert not names & {*forbidden, "get_file", "load_model", "enable_unsafe_deserialization", "model_from_json"}


def test_what_keras_writes_of_its_own_classes_passes() -> None:
    inputs = keras.Input([8, 4])
    mixed = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True))(inputs * 2.0)
    mixed = keras.layers.TimeDistributed(keras.layers.Dense(2, "relu", kernel_regularizer="l2"))(mixed)
    outputs = keras.layers.Dense(1, kernel_constraint="max_norm", dtype="mixed_float16")(keras.ops.mean(mixed, axis=1))
    model = keras.Model(inputs, outputs)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.AdamW(rate), "mse", metrics=["mae", keras.metrics.AUC()], weighted_metrics=["mse"])
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    config["compile_config"] = json.loads(json.dumps(model.get_compile_config()))
    check(config, exact=True)
    check(config)
