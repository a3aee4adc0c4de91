"""`anyrig.save` and `anyrig.load`: all types and names come back, pages are shared, parts and changes accounted for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import anyrig
from anyrig import checkpoints, locations
from anyrig.errors import AnyrigError, UsageError
from anyrig.state.capture import capture
from anyrig.state.choice import convert
from anyrig.state.report import LoadReport
from anyrig.state.values import to_array
from anyrig.store.commit import committed_steps
from anyrig.store.local import LocalFiles
from anyrig.store.read import Checkpoint
from anyrig.store.retain import remove_steps
from anyrig.store.write import write_checkpoint
from tests.unit.state_models import state_of

layers = keras.layers
X, Y = np.ones((8, 16), "float32"), np.ones((8, 4), "float32")

# (type, bits): not-a-number with a payload, negative zero and infinity among the floats.
TYPES: dict[str, np.ndarray[Any, Any]] = {
    "float32": np.array([0x7FC00001, 0x80000000, 0xFF800000, 5], np.uint32).view(np.float32),
    "float64": np.array([np.nan, -0.0, np.inf, 1e300]),
    "float16": np.array([np.nan, -0.0, np.inf, 6e-8], np.float16),
    "bfloat16": np.array([0x7FC1, 0x8000, 0x7F80, 3], np.uint16).view(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.array([0x7F, 0x80, 0x7E, 1], np.uint8).view(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.array([0x7F, 0x80, 0x7C, 1], np.uint8).view(ml_dtypes.float8_e5m2),
    "bool": np.array([True, False, True, True]),
    "int8": np.array([-128, 127, 0, 1], np.int8),
    "uint8": np.array([255, 0, 1, 2], np.uint8),
    "int16": np.array([-(2**15), 2**15 - 1, 0, 1], np.int16),
    "int64": np.array([-(2**63), 2**63 - 1, 0, 1]),
    "uint64": np.array([2**64 - 1, 0, 1, 2], np.uint64),
    "complex64": np.array([np.nan, 1j, np.inf - 2j, 0], np.complex64),
}
SHAPES: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "whole pages": lambda four: np.tile(four, (64, 32)),
    "odd": lambda four: np.tile(four, 5)[:17],
    "scalar": lambda four: four[:1].reshape(()),
    "no elements": lambda four: four[:0].reshape((0, 3)),
}
KEYS = ["plain", "with space", "with/slash", "Übergröße 😀", "100%", "n" * 1000]


class Holds(layers.Layer):
    """A layer that holds given values under given keys."""

    def __init__(self, values: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.held = {
            key: keras.Variable(np.zeros_like(value), dtype=value.dtype.name, trainable=False)
            for key, value in values.items()
        }
        self.built = True

    def call(self, x: Any) -> Any:
        return x


def holding(values: dict[str, Any]) -> tuple[keras.Model, dict[str, keras.Variable]]:
    layer = Holds(values, name="holds")
    return keras.Sequential([keras.Input((4,)), layer]), layer.held


def file_of(variable: keras.Variable) -> str | None:
    """Return the file whose mapped pages hold the value of a variable, from the process's own table of maps."""
    address = to_array(variable).ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            name = line.split(maxsplit=5)[-1].strip()
            return name if name.startswith("/") else None
    return None


def test_B164_B165_B167_every_type_shape_and_name_comes_back_to_the_bit_and_large_ones_share_pages(
    tmp_path: Path,
) -> None:
    values = {f"{kind} {shape}": form(four) for kind, four in TYPES.items() for shape, form in SHAPES.items()}
    values |= {key: np.float32(index).reshape(1) for index, key in enumerate(KEYS)}
    model, held = holding(values)
    for key, variable in held.items():
        variable.value.assign(values[key])
    anyrig.save(tmp_path / "c", model)
    for mmap in (True, False):
        other, again = holding(values)
        report = anyrig.load(tmp_path / "c", into=other, mmap=mmap)
        assert set(report.restored.values()) == {"model-00001-of-00001.safetensors"}
        for key, variable in again.items():
            assert to_array(variable).dtype == values[key].dtype
            assert to_array(variable).tobytes() == values[key].tobytes(), key
        shared = {key for key, variable in again.items() if file_of(variable) is not None}
        assert shared >= ({key for key in values if "pages" in key} if mmap else set())
        assert mmap or not shared


def test_an_empty_model(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Flatten()])
    anyrig.save(tmp_path / "c", model)
    assert anyrig.load(tmp_path / "c", into=model).tensors == ()


def test_a_save_takes_no_url() -> None:
    with pytest.raises(UsageError, match=r"takes a path of this machine, and s3://\*\*\*@bucket/c is a URL") as caught:
        anyrig.save("s3://me:secret@bucket/c", build())
    assert "a run may be at a URL" in caught.value.hint


def test_text_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    model, held = holding({"a": np.zeros(1, np.float32)})
    held["a"]._value = np.array(["text"])
    with pytest.raises(UsageError, match="type") as caught:
        anyrig.save(tmp_path / "c", model)
    assert caught.value.code == "ANY-STORE-001"
    assert os.listdir(tmp_path) == []


def build(optimizer: Any = None, *, body: int = 32, frozen: bool = False, policy: str = "float32") -> keras.Model:
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential(
            [keras.Input((16,)), layers.Dense(body, name="body"), layers.Dense(4, name="head", use_bias=False)]
        )
    finally:
        keras.config.set_dtype_policy("float32")
    model.layers[0].trainable = not frozen
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    return model


def trained(path: Path, *given: Any, **more: Any) -> keras.Model:
    model = build(*given, **more)
    model.train_on_batch(X, Y)
    anyrig.save(path, model, progress={"step": 1, "note": "one"})
    return model


def difference(code: str, path: Path, model: keras.Model, **settings: Any) -> str:
    """Return the message of a load that is refused, and changes nothing."""
    model.optimizer.build(model.trainable_variables)
    before = state_of(model)
    with pytest.raises(AnyrigError) as caught:
        anyrig.load(path, into=model, **settings)
    assert caught.value.code == code
    assert state_of(model) == before
    return str(caught.value)


def test_training_goes_on_alike_and_the_file_keeps_its_bytes(tmp_path: Path) -> None:
    model, other = trained(tmp_path / "c", body=256), build(body=256)
    files = {path: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    report = anyrig.load(tmp_path / "c", into=other)
    kernels = [other.layers[0].kernel, other.optimizer._momentums[0], other.optimizer._velocities[2]]
    assert [Path(str(file_of(kernel))).parent for kernel in kernels] == [tmp_path / "c"] * 3
    assert (report.step, report.progress["note"], report.verified) == (1, "one", "full")
    for each in (model, other):
        each.train_on_batch(X, Y)
        each.optimizer._momentums[0].value.assign_add(np.ones((16, 256), "float32"))
    metrics = {name for name in state_of(model) if name.startswith("metrics/")}
    assert {name: value for name, value in state_of(other).items() if name not in metrics} == {
        name: value for name, value in state_of(model).items() if name not in metrics
    }
    assert [file_of(kernel) for kernel in kernels] == [None] * 3
    assert {path: path.read_bytes() for path in files} == files


def test_slots_that_a_traced_step_made_are_mapped_and_go_on_alike(tmp_path: Path) -> None:
    model, other = build(body=256), build(body=256)
    for each in (model, other):
        each.run_eagerly = False
        each.train_on_batch(X, Y)
    anyrig.save(tmp_path / "c", model)
    anyrig.load(tmp_path / "c", into=other)
    slots = [other.optimizer._momentums[0], other.optimizer._velocities[2]]
    assert [Path(str(file_of(slot))).parent for slot in slots] == [tmp_path / "c"] * 2
    for each in (model, other):
        each.train_on_batch(X, Y)
    assert state_of(other) == state_of(model)
    assert [file_of(slot) for slot in slots] == [None] * 2
    assert anyrig.load(tmp_path / "c", into=other).verified == "full"


def test_damage_is_found_before_anything_is_changed(tmp_path: Path) -> None:
    trained(tmp_path / "c")
    path = tmp_path / "c" / "optimizer-00001-of-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    assert "is damaged" in difference("ANY-LOAD-008", tmp_path / "c", build())
    assert anyrig.load(tmp_path / "c", into=build(), weights_only=True).verified == "full"
    assert anyrig.load(tmp_path / "c", into=build(), verify="off").verified == "off"


def test_parts_by_pattern_name_and_alias(tmp_path: Path) -> None:
    model = trained(tmp_path / "c")
    other = build()
    before = state_of(other)
    report = anyrig.load(tmp_path / "c", into=other, include=["model/head/*"])
    assert list(report.restored) == ["model/head/kernel"]
    assert report.ignored["model/body/kernel"] == "not included"
    after = state_of(other)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"model/head/kernel"}
    assert after["model/head/kernel"] == state_of(model)["model/head/kernel"]
    for pattern in ("*/body/kernel", model.layers[0].kernel.path):  # the latter is Keras's own name, an alias
        assert list(anyrig.load(tmp_path / "c", into=other, include=[pattern]).restored) == ["model/body/kernel"]
    report = anyrig.load(tmp_path / "c", into=build(), exclude=["*head*"], optimizer=False, metrics=False)
    assert list(report.restored) == ["model/body/kernel", "model/body/bias"]
    assert "fits the pattern 'modle/*'" in difference("ANY-STATE-015", tmp_path / "c", build(), include=["modle/*"])


def test_what_is_on_one_side_only_needs_strict_false_and_shapes_agree_all_the_same(tmp_path: Path) -> None:
    trained(tmp_path / "c")
    other = keras.Sequential([keras.Input((16,)), layers.Dense(32, name="body"), layers.Dense(4, name="new")])
    other.compile("adam", "mse")
    assert "stored  model/head/kernel" in difference("ANY-STATE-005", tmp_path / "c", other, optimizer=False)
    report = anyrig.load(tmp_path / "c", into=other, optimizer=False, strict=False)
    assert report.ignored["model/head/kernel"] == "the model has no such variable"
    assert report.started == {"model/new/kernel": "not stored", "model/new/bias": "not stored"}
    assert "[16, 32]" in difference("ANY-STATE-005", tmp_path / "c", build(body=8), optimizer=False, strict=False)


@pytest.mark.parametrize(
    ("saved", "loaded"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float64")]
)
def test_B166_B171_other_floats_need_a_word_and_bring_the_optimizer_along(
    tmp_path: Path, saved: str, loaded: str
) -> None:
    model = trained(tmp_path / "c", policy=saved)
    message = difference("ANY-STATE-005", tmp_path / "c", build(policy=loaded))
    assert f'cast=True, or cast={{"PATTERN": "{loaded}"}}' in message
    for cast in (True, {"model/*": loaded, "optimizer/*": loaded}):
        other = build(policy=loaded)
        report = anyrig.load(tmp_path / "c", into=other, cast=cast)
        assert set(report.cast.values()) == {(saved, loaded)}
        assert {"model/body/kernel", "optimizer/main/body/kernel/velocity"} < set(report.cast)
        assert "iterations" not in str(report.cast)
        for mine, theirs in zip(model.variables, other.variables, strict=True):
            assert np.array_equal(to_array(mine).astype(to_array(theirs).dtype), to_array(theirs))


def test_casts_that_lose_more_than_rounding_are_refused(tmp_path: Path) -> None:
    model, held = holding({"f": np.zeros(2, np.float32), "i": np.zeros(2, np.int32)})
    held["f"].assign([1e6, np.inf])
    held["i"].assign([1, 300])
    anyrig.save(tmp_path / "c", model)
    small, kept = holding({"f": np.zeros(2, np.float16), "i": np.zeros(2, np.int8)})
    for cast, code in (
        (True, "ANY-STATE-005"),  # integers are never converted by a word for all
        ({"*/i": "int16"}, "ANY-STATE-005"),
        ({"*/f": "float16", "*/i": "int8"}, "ANY-STATE-016"),
    ):
        with pytest.raises(AnyrigError) as caught:
            anyrig.load(tmp_path / "c", into=small, cast=cast)
        assert caught.value.code == code
        assert not to_array(kept["f"]).any()
    held["f"].assign([1e3, np.inf])
    held["i"].assign([-128, 127])
    anyrig.save(tmp_path / "c", model)
    anyrig.load(tmp_path / "c", into=small, cast={"*/f": "float16", "*/i": "int8"})
    assert (to_array(kept["f"]).tolist(), to_array(kept["i"]).tolist()) == ([1000, np.inf], [-128, 127])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([2**32 - 1], np.uint32), "int32"),
        (np.array([-1], np.int32), "uint32"),
        (np.array([200], np.uint8), "int8"),
        (np.array([1.5], np.float32), "int32"),
        (np.array([np.inf], np.float32), "float8_e4m3fn"),
        (np.array([1e30], np.float32), "float16"),
    ],
)
def test_a_number_that_would_become_another_one_is_refused(values: Any, dtype: str) -> None:
    with pytest.raises(AnyrigError, match="ANY-STATE-016"):
        convert("model/x", values, np.dtype(dtype))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([2**31 - 1], np.uint32), "int32"),
        (np.array([np.nan, -np.inf, -0.0], np.float32), "bfloat16"),
        (np.array([np.nan, 1.0], np.float32), "float8_e4m3fn"),
        (np.array([True, False]), "int32"),
        (np.array([-5, 7], np.int64), "float32"),
    ],
)
def test_a_number_that_stays_is_converted(values: Any, dtype: str) -> None:
    assert np.array_equal(
        convert("x", values, np.dtype(dtype)).astype(values.dtype), values, equal_nan=values.dtype.kind == "f"
    )


def slots(report: LoadReport, name: str) -> str:
    """Return what became of an optimizer's variable."""
    name = f"optimizer/main/{name}"
    where = {"kept": report.restored, "left": report.ignored, "own": report.started}
    return "+".join(word for word, names in where.items() if name in names)


def test_D_B061_B067_a_changed_optimizer_keeps_what_fits_when_asked(tmp_path: Path) -> None:
    model = trained(tmp_path / "c", frozen=True)

    def partly(other: keras.Model, refused: str = "ANY-STATE-005") -> LoadReport:
        assert 'slots="partial"' in difference(refused, tmp_path / "c", other)
        return anyrig.load(tmp_path / "c", into=other, slots="partial")

    report = partly(unfrozen := build())
    assert [slots(report, name) for name in ("iterations", "head/kernel/velocity", "body/kernel/velocity")] == [
        *("kept", "kept", "own"),
    ]
    assert (
        state_of(unfrozen)["optimizer/main/head/kernel/momentum"]
        == (state_of(model)["optimizer/main/head/kernel/momentum"])
    )
    unfrozen.train_on_batch(X, Y)

    report = partly(build(keras.optimizers.Adam(amsgrad=True), frozen=True))
    assert [slots(report, name) for name in ("head/kernel/velocity", "head/kernel/velocity_hat")] == ["kept", "own"]

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    report = partly(build(keras.optimizers.Adam(schedule), frozen=True))
    assert [slots(report, name) for name in ("iterations", "learning_rate")] == ["kept", "left"]
    assert "not loaded (the model has no such variable): optimizer/main/learning_rate" in str(report)

    changed = build(keras.optimizers.SGD(0.5, momentum=0.9), frozen=True)
    report = partly(changed, "ANY-STATE-017")
    assert [slots(report, name) for name in ("iterations", "learning_rate", "head/kernel/momentum")] == ["left+own"] * 3
    assert float(changed.optimizer.learning_rate) == 0.5
    assert np.array_equal(changed.layers[1].kernel, model.layers[1].kernel)

    anyrig.load(tmp_path / "c", into=build(keras.optimizers.AdamW(), frozen=True))  # the same slots, the same meaning
    with pytest.raises(UsageError, match="expected strict or partial"):
        anyrig.load(tmp_path / "c", into=changed, slots="some")
    with pytest.raises(UsageError, match="cast: expected True, False or a mapping"):
        anyrig.load(tmp_path / "c", into=changed, cast="float32")  # type: ignore[arg-type]


def test_arguments_in_each_others_place_are_told(tmp_path: Path) -> None:
    model: Any = build("sgd")
    path: Any = tmp_path / "c"
    for call, words in (
        (lambda: anyrig.save(model, path), "the path is of the type Sequential"),
        (lambda: anyrig.save(None, model), "the path is None"),  # type: ignore[arg-type]
        (lambda: anyrig.save(path, path), "the model is of the type PosixPath"),
        (lambda: anyrig.load(path, into="c"), "the model is of the type str"),
        (lambda: anyrig.load(path, into=model, optimizer="adam"), "the optimizer is 'adam'"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            call()
        assert refused.value.code == "ANY-STATE-019"
    anyrig.save(path, model)
    report = anyrig.load(path, into=model, weights_only=True, include="model/*/kernel", strict=False)
    assert all(name.endswith("kernel") for name in report.restored)


def test_an_optimizer_that_the_model_does_not_hold(tmp_path: Path) -> None:
    def made() -> tuple[keras.Model, keras.optimizers.Optimizer]:
        return keras.Sequential([keras.Input((16,)), layers.Dense(4)]), keras.optimizers.Adam(0.1)

    model, optimizer = made()
    optimizer.build(model.trainable_variables)
    optimizer.apply([np.ones((16, 4), "float32"), np.ones(4, "float32")])
    anyrig.save(tmp_path / "c", model, optimizer=optimizer)
    other, again = made()
    report = anyrig.load(tmp_path / "c", into=other, optimizer=again)
    assert report.step == 1 == int(again.iterations)
    assert np.array_equal(again._momentums[0], optimizer._momentums[0])
    assert vars(other).get("optimizer") is None
    assert anyrig.digest(tmp_path / "c") != anyrig.digest(other), "the optimizer is not the model's"


def test_a_loop_of_its_own_is_told_of_the_optimizer_and_begins_where_nothing_is_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = keras.Sequential([keras.Input((16,)), layers.Dense(4, name="head")])
    with pytest.warns(UserWarning, match=r"holds none; give it: anyrig.save\(path, model, optimizer=optimizer\)"):
        saving = anyrig.save(tmp_path / "c", model)
    assert repr(saving) == f"<Saving {tmp_path / 'c'}: committed>"
    anyrig.save(tmp_path / "c", model, optimizer=False)
    compiled = keras.Sequential([keras.Input((16,)), layers.Dense(4, name="head")])
    compiled.compile("adam", "mse")
    message = difference("ANY-STATE-005", tmp_path / "c", compiled)
    assert (
        "holds no optimizer; to load what fits (anyrig.load): optimizer=False, metrics=False (or weights_only=True)"
        in message
    )
    assert "partial" not in message
    anyrig.load(tmp_path / "c", compiled, optimizer=False, metrics=False)

    optimizer = keras.optimizers.Adam()
    for there in ("empty", "nothing"):
        report = anyrig.load(tmp_path / there, model, optimizer=optimizer, missing_ok=True)
        assert (report.step, report.progress, report.tensors) == (None, {}, ())
        (tmp_path / "empty").mkdir(exist_ok=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    for there in ("other", "other/thesis.txt"):
        with pytest.raises(UsageError, match="not a checkpoint"):
            anyrig.load(tmp_path / there, model, missing_ok=True)
    anyrig.save(tmp_path / "c", model, optimizer=optimizer, progress={"epoch": 3})
    (tmp_path / ".c.saving").mkdir()
    (tmp_path / "c").rename(tmp_path / ".c.saving" / "step-000000000")  # killed between the two renames
    assert anyrig.load(tmp_path / "c", model, optimizer=optimizer, missing_ok=True).progress == {"epoch": 3}


def test_the_loop_on_the_page_about_checkpoints_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    loop = page.partition("## A loop of your own")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)

    def ran(epochs: int) -> dict[str, Any]:
        model = keras.Sequential([keras.Input((16,)), layers.Dense(4)])
        loss = keras.losses.MeanSquaredError()
        given = {"model": model, "epochs": epochs, "batches": [(X, Y)] * 3, "loss_function": loss}
        exec(loop, given := {"keras": keras, "anyrig": anyrig, "tf": tf, **given})
        return given

    assert ran(2)["report"].step is None
    again = ran(3)
    assert (again["report"].step, again["report"].progress, again["epoch"]) == (6, {"epoch": 2}, 2)
    assert int(again["optimizer"].iterations) == 9


def test_the_hint_of_a_load_that_does_not_fit_names_settings_that_load_it(tmp_path: Path) -> None:
    trained(tmp_path / "c")

    def hinted(*made: layers.Layer) -> tuple[keras.Model, str]:
        model = keras.Sequential([keras.Input((16,)), layers.Dense(32, name="body"), *made])
        model.compile("adam", "mse")
        message = difference("ANY-STATE-005", tmp_path / "c", model, metrics=False)
        return model, message.partition("to load what fits (anyrig.load): ")[2].partition(";")[0]

    model, hint = hinted(layers.Dense(7, name="head", use_bias=False))
    assert hint == 'exclude=["model/head/*"], slots="partial"'
    report = anyrig.load(tmp_path / "c", model, metrics=False, exclude=["model/head/*"], slots="partial")
    assert "model/body/kernel" in report.restored
    model, hint = hinted(layers.Dense(4, name="new"))
    assert hint == 'strict=False, slots="partial"'
    anyrig.load(tmp_path / "c", model, metrics=False, strict=False, slots="partial")


def encoded(body: str = "encoder/body", head: str = "top") -> keras.Model:
    """The model of `build` in other words: one layer inside another model, one with another name."""
    outer, _, name = body.rpartition("/")
    inner: Any = layers.Dense(32, name=name)
    if outer:
        inner = keras.Sequential([keras.Input((16,)), inner], name=outer)
    model = keras.Sequential([keras.Input((16,)), inner, layers.Dense(4, name=head, use_bias=False)])
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), "mse", run_eagerly=True)
    return model


@pytest.mark.parametrize(
    "rename",
    [
        {"body": "encoder/body", "head": "top"},
        {"model/body": "model/encoder/body", "model/head/kernel": "model/top/kernel"},
        {"bod*": "encoder/bod*", "he*/kernel": "top/kernel"},
        {"body/": "encoder/body/", "head/": "top"},
    ],
    ids=["layers", "names", "patterns", "folders"],
)
def test_renamed_layers_bring_their_slots_and_averages_and_train_on_alike(
    tmp_path: Path, rename: dict[str, str]
) -> None:
    model = trained(tmp_path / "c", keras.optimizers.Adam(0.01, use_ema=True))
    other = encoded()
    report = anyrig.load(tmp_path / "c", into=other, rename=rename)
    assert (report.ignored, report.started) == ({}, {})
    assert report.renamed["optimizer/main/encoder/body/kernel/velocity"] == "optimizer/main/body/kernel/velocity"
    assert report.renamed["ema/top/kernel"] == "ema/head/kernel"
    assert "model/body/bias as model/encoder/body/bias" in str(report)
    assert next(line.why for line in report.tensors if line.name == "model/top/kernel") == "stored as model/head/kernel"
    for trained_one in (model, other):
        trained_one.train_on_batch(X, Y)
    words = {"encoder/": "", "top/": "head/"}

    def as_before(name: str) -> str:
        for new, old in words.items():
            name = name.replace(new, old)
        return name

    assert {as_before(name): value for name, value in state_of(other).items()} == state_of(model)


def test_U01_two_layers_are_exchanged_and_what_order_alone_would_decide_is_said(tmp_path: Path) -> None:
    def twins() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(4)])

    model = twins()
    anyrig.save(tmp_path / "c", model, optimizer=False)
    other = twins()
    anyrig.load(tmp_path / "c", into=other, rename={"dense.0": "dense.1", "dense.1": "dense.0"})
    first, second = (layer.kernel.numpy().tobytes() for layer in model.layers)
    assert [layer.kernel.numpy().tobytes() for layer in other.layers] == [second, first]


@pytest.mark.parametrize("rename", [{"words": "tokens"}, {"words/*": "tokens/*"}])
def test_files_of_a_renamed_layer_follow_it(tmp_path: Path, rename: dict[str, str]) -> None:
    def looking(name: str) -> keras.Model:
        words = keras.Input((), dtype="string")
        return keras.Model(words, layers.StringLookup(name=name)(words))

    model = looking("words")
    model.layers[1].set_vocabulary(["a", "b"])
    anyrig.save(tmp_path / "c", model)
    other = looking("tokens")
    anyrig.load(tmp_path / "c", into=other, rename=rename)
    assert other.layers[1].get_vocabulary() == ["[UNK]", "a", "b"]


def test_files_of_two_layers_never_get_one_name(tmp_path: Path) -> None:
    words = keras.Input((), dtype="string")
    model = keras.Model(words, [layers.StringLookup(vocabulary=[name], name=name)(words) for name in "ab"])
    model.compile("sgd", "mse")
    anyrig.save(tmp_path / "c", model)
    message = difference("ANY-STATE-018", tmp_path / "c", model, rename={"a": "b"})
    assert "two files would be b/vocabulary.txt" in message


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        ({"bdoy": "encoder"}, "'bdoy' is no name"),
        ({"bod": "encoder"}, "'bod' is no name, and no first part of a name"),
        ({"body": "a", "bo*": "b*"}, "'body' and 'bo*' both name model/body/"),
        ({"head": "body"}, "two tensors would be model/body/kernel"),
        ("head", "'head' is no mapping of names"),
        ({"head": None}, "{'head': None} is no mapping of names"),
    ],
)
def test_renames_that_make_no_sense_are_refused(tmp_path: Path, rename: dict[str, str], said: str) -> None:
    trained(tmp_path / "c")
    assert said in difference("ANY-STATE-018", tmp_path / "c", build(), rename=rename)


def test_a_new_name_that_the_model_has_not_is_refused_even_where_a_part_may_be_missing(tmp_path: Path) -> None:
    trained(tmp_path / "c")
    other = encoded("body", "top")
    before = state_of(other)
    message = difference(
        "ANY-STATE-018", tmp_path / "c", other, rename={"head": "tpo"}, strict=False, weights_only=True
    )
    assert "'head' becomes model/tpo/kernel, and the model has no such variable" in message
    assert state_of(other) == before
    part: dict[str, Any] = {
        "rename": {"body": "top"},
        "exclude": ["model/head/*"],
        "strict": False,
        "weights_only": True,
    }
    bare = keras.Sequential([keras.Input((16,)), layers.Dense(32, name="top", use_bias=False)])
    report = anyrig.load(tmp_path / "c", bare, **part)
    assert list(report.restored) == ["model/top/kernel"]
    assert report.ignored["model/top/bias"] == "the model has no such variable"


def test_a_refusal_shows_the_rename_that_would_load(tmp_path: Path) -> None:
    trained(tmp_path / "c")
    other = keras.Sequential(
        [keras.Input((16,)), layers.Dense(32, name="body"), layers.Dense(4, use_bias=False, name="top")]
    )
    other.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    message = difference("ANY-STATE-005", tmp_path / "c", other)
    assert 'if head is now called top: rename={"head": "top"}' in message
    assert anyrig.load(tmp_path / "c", into=other, rename={"head": "top"}).started == {}


def test_S2_10_split_by_layer_a_part_is_read_from_its_own_files(tmp_path: Path) -> None:
    model = trained(tmp_path / "whole")
    anyrig.save(tmp_path / "c", model, split="layer", max_shard_size="1 kB")
    report = anyrig.load(tmp_path / "c", into=build(), include=["model/head/*"])
    assert report.restored == {"model/head/kernel": "model-00003-of-00003.safetensors"}
    other = build()
    anyrig.load(tmp_path / "c", into=other)
    assert state_of(other) == state_of(model)
    for settings, said in (
        ({"split": "layers"}, "split: expected size or layer"),
        ({"max_shard_size": 0}, "max_shard_size: exp"),
    ):
        with pytest.raises(UsageError, match=said):
            anyrig.save(tmp_path / "d", model, **settings)
    assert not (tmp_path / "d").exists()


def test_B146_a_model_that_has_predicted_already_computes_with_what_was_loaded(tmp_path: Path) -> None:
    """Normalization computes with copies, a lookup with a table: both are in the graph that was traced before."""

    def made(shift: float, words: list[str]) -> keras.Model:
        scale, look = layers.Normalization(), layers.StringLookup()
        scale.adapt(np.arange(8, dtype="float32").reshape(4, 2) + shift)
        look.adapt(words)
        x, text = keras.Input((2,)), keras.Input((1,), dtype="string")
        model = keras.Model([x, text], [layers.Dense(1, kernel_initializer="ones")(scale(x)), look(text)])
        model.compile("sgd", "mse")
        return model

    rows = [np.ones((3, 2), "float32"), tf.constant([["a"], ["b"], ["c"]])]
    model, other = made(0, ["a", "b", "b"]), made(5, ["c", "a", "a"])
    anyrig.save(tmp_path / "c", model)
    before = other.predict(rows, verbose=0)
    anyrig.load(tmp_path / "c", into=other)
    for ours, theirs, first in zip(other.predict(rows, verbose=0), model.predict(rows, verbose=0), before, strict=True):
        assert ours.tobytes() == theirs.tobytes() != first.tobytes()


def test_saving_again_replaces_and_digests_agree(tmp_path: Path) -> None:
    model = trained(tmp_path / "c")
    anyrig.load(tmp_path / "c", into=model)
    model.train_on_batch(X, Y)  # it was mapped until now
    assert anyrig.save(tmp_path / "c", model).wait() == tmp_path / "c"
    assert anyrig.digest(tmp_path / "c") == anyrig.digest(model)
    assert os.listdir(tmp_path) == ["c"]
    for bad in ("step-000000007", ".step-000000002.removed-00000000"):
        with pytest.raises(UsageError, match="cannot hold step 2"):
            anyrig.save(tmp_path / bad, model)
    (tmp_path / "c" / "manifest.json").unlink()
    with pytest.raises(UsageError, match="not a checkpoint") as caught:
        anyrig.save(tmp_path / "c", model)
    assert caught.value.code == "ANY-STORE-019"


def test_no_save_among_the_checkpoints_of_a_run(tmp_path: Path) -> None:
    model, _ = holding({"a": np.zeros(3, np.float32)})
    run, step = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-000000000"
    anyrig.save(step, model)  # a folder of that name that belongs to no run
    (run / "environment.json").write_text("{}")
    before = (step / "manifest.json").stat()
    (tmp_path / "link").symlink_to(step)
    for path in (step, step.with_name("best"), tmp_path / "link"):
        with pytest.raises(UsageError, match=f"{run} is a run") as caught:
            anyrig.save(path, model)
        assert caught.value.code == "ANY-STORE-019"
    assert (step / "manifest.json").stat() == before
    assert os.listdir(step.parent) == [step.name]
    anyrig.save(run / "mine", model)


class Dies(LocalFiles):
    """Raises KeyboardInterrupt at the n-th effect, and at every later one, as a killed process has none."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in ("left", "close"):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_F_killed_at_any_effect_one_complete_checkpoint_is_found_and_the_next_save_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = holding({"a": np.zeros(3, np.float32)})
    other, again = holding({"a": np.zeros(3, np.float32)})
    hidden = 0
    for at in range(100):
        target = tmp_path / str(at)
        model.layers[0].held["a"].assign([1, 1, 1])
        anyrig.save(target, model)
        model.layers[0].held["a"].assign([2, 2, 2])
        dying = Dies(at)
        monkeypatch.setattr(checkpoints, "_write", partial(_real_write, files=dying))
        try:
            anyrig.save(target, model)
        except KeyboardInterrupt:
            report = anyrig.load(target, into=other)
            assert to_array(again["a"]).tolist() in ([1, 1, 1], [2, 2, 2])
            hidden += any("did not come to its end" in note for note in report.notes)
        monkeypatch.undo()
        anyrig.save(target, model)
        anyrig.load(target, into=other)
        assert to_array(again["a"]).tolist() == [2, 2, 2]
        assert not (tmp_path / f".{at}.saving").exists()
        if dying.left >= 0:
            break
    assert at > 15
    assert hidden


_real_write = checkpoints._write


def test_a_load_waits_for_the_save_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.5)
        return _real_write(*given, **named)

    monkeypatch.setattr(checkpoints, "_write", slow)
    model = build()
    saving = anyrig.save(tmp_path / "slow", model, wait=False)
    assert not saving.done
    assert anyrig.load(tmp_path / "slow", model).restored


def while_reading(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let `act` happen once, after the next checkpoint was opened and before its tensors are read."""
    plain = Checkpoint.tensors

    def tensors(self: Checkpoint, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(Checkpoint, "tensors", plain)
        act()
        return self.tensors(*given, **named)

    monkeypatch.setattr(Checkpoint, "tensors", tensors)


@pytest.mark.parametrize("verify", ["off", "fast", "full"])
@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_replaced_while_it_is_loaded_is_loaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Any, mmap: bool
) -> None:
    model, held = holding({"a": np.zeros(3, np.float32)})
    other, again = holding({"a": np.zeros(3, np.float32)})
    for value in (1, 2):
        held["a"].assign(np.full(3, value))
        if value == 1:
            anyrig.save(tmp_path / "c", model, progress={"value": 1})
    while_reading(monkeypatch, lambda: anyrig.save(tmp_path / "c", model, progress={"value": 2}))
    report = anyrig.load(tmp_path / "c", into=other, verify=verify, mmap=mmap)
    assert (report.progress, to_array(again["a"]).tolist()) == ({"value": 2}, [2, 2, 2])


def test_the_newest_step_of_a_run_that_goes_on_is_loaded_and_none_that_retention_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = holding({"a": np.zeros(3, np.float32)})
    steps = tmp_path / "run" / "checkpoints"
    steps.mkdir(parents=True)

    def goes_on(step: int) -> None:
        held["a"].assign(np.full(3, step))
        write_checkpoint(steps, step, capture(model).tensors, progress={})
        remove_steps(steps, [found for found in committed_steps(steps) if found != step])

    goes_on(1)
    while_reading(monkeypatch, lambda: goes_on(2))
    assert anyrig.load(tmp_path / "run", into=model).step == 2
    listed = iter([[], [1]])  # each name was gone when it was looked at; and a step that was removed after that
    monkeypatch.setattr(locations, "committed_steps", lambda folder: next(listed, None) or committed_steps(folder))
    assert anyrig.load(tmp_path / "run", into=model).step == 2
    monkeypatch.setattr(locations, "committed_steps", lambda folder: [])
    with pytest.raises(UsageError, match="no committed checkpoint"):
        anyrig.load(tmp_path / "run", into=model)


def test_between_the_two_renames_a_save_is_found_behind_a_link_and_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = holding({"a": np.zeros(3, np.float32)})
    anyrig.save(tmp_path / "c", model)
    (tmp_path / "link").symlink_to(tmp_path / "c")
    hidden = tmp_path / ".c.saving" / "step-000000000"
    hidden.parent.mkdir()
    (tmp_path / "c").rename(hidden)
    assert anyrig.load(tmp_path / "link", into=model).source == str(hidden)
    while_reading(monkeypatch, lambda: hidden.rename(tmp_path / "c"))
    assert anyrig.load(tmp_path / "link", into=model).source == str(tmp_path / "link")
    monkeypatch.setattr(checkpoints, "newest_committed", lambda folder: None)  # looked at before it was there
    (tmp_path / "c").rename(hidden)
    monkeypatch.setattr(time, "sleep", lambda _: hidden.rename(tmp_path / "c"))
    assert anyrig.load(tmp_path / "c", into=model).source == str(tmp_path / "c")


def test_a_save_in_the_background_raises_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    good = anyrig.save(tmp_path / "good", model, wait=False)
    (tmp_path / "file").write_text("")
    bad = anyrig.save(tmp_path / "file" / "c", model, wait=False)  # waits for the first one
    assert good.done
    for _ in range(2):
        with pytest.raises(AnyrigError, match=r"not saved in .*file/c"):
            bad.wait()
    assert repr(bad).endswith("file/c: failed>")
    assert anyrig.save(tmp_path / "good", model).done, "it is raised once where it was waited for"
    bad = anyrig.save(tmp_path / "file" / "c", model, wait=False)
    with pytest.raises(AnyrigError, match=r"not saved in .*file/c"):
        anyrig.save(tmp_path / "good", model)
    assert good.wait() == tmp_path / "good"


def test_saves_of_several_threads_keep_their_own_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(target: Path, *given: Any, **named: Any) -> Any:
        time.sleep(0.02)
        return _real_write(target, *given, **named)

    monkeypatch.setattr(checkpoints, "_write", slow)
    (tmp_path / "file").write_text("")
    model, failed = build(), []

    def work(folder: str) -> None:
        for number in range(5):
            try:
                anyrig.save(tmp_path / folder / "c", model, wait=folder == "file" or number % 2 == 0)
            except AnyrigError as error:
                failed.append((folder, error.code))

    (tmp_path / "good").mkdir()
    threads = [threading.Thread(target=work, args=(folder,)) for folder in ("good", "file", "good/other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [("file", "ANY-STORE-007")] * 5


def test_other_versions_stand_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    monkeypatch.setattr(checkpoints, "environment", lambda: {"keras": "2.15.0", "tensorflow": None})
    anyrig.save(tmp_path / "c", model)
    report = anyrig.load(tmp_path / "c", into=model)
    assert report.notes == (f"made with keras 2.15.0, loaded with {keras.__version__}",)
