"""The recipe: a run described in YAML. These are its keys, their defaults, and what their values must be.

Reading a recipe runs none of the user's code and imports no TensorFlow; `model.py`, `data.py` and
`run.py` act on what stands here. Keys that belong to later versions are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from anyrig.errors import UsageError
from anyrig.report.loggers import SINKS
from anyrig.sizes import SIZE_WORDS, parse_size
from anyrig.store.plan import SPLITS
from anyrig.store.retain import Keep
from anyrig.topology.plan import PRECISIONS
from anyrig.train.checkpoint import MODES, keep_rule
from anyrig.train.every import WORDS as EVERY_WORDS
from anyrig.train.every import Every, parse_every
from anyrig.train.limits import DURATION_WORDS, parse_duration
from anyrig.train.recipe.errors import Expect, Section, expected, explain, shown
from anyrig.train.recipe.yaml import apply_overrides, read_yaml

Keys = str | list[str] | dict[str, str]
# A name that Keras knows, or one name with its arguments: "adamw" or {"adamw": {"learning_rate": 0.001}}.
Named = str | dict[str, dict[str, Any]]


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(_is_text(key) and _is_text(item) for key, item in value.items())
    return bool(value) and all(map(_is_text, value)) if isinstance(value, list) else _is_text(value)


def _is_named(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) == 1 and all(_is_text(key) and isinstance(item, dict) for key, item in value.items())
    return _is_text(value)


def _is_loss(value: Any) -> bool:
    return _is_named(value) or (isinstance(value, dict) and bool(value) and all(map(_is_named, value.values())))


def _are_metrics(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(isinstance(item, list) and _are_metrics(item) for item in value.values())
    return isinstance(value, list) and all(map(_is_named, value))


def _are_loggers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name in SINKS for name in value)


def _is_understood(parse: Callable[[Any], object]) -> Callable[[Any], bool]:
    """Return a test that asks whether `parse` takes a value or raises ValueError."""

    def test(value: Any) -> bool:
        try:
            return bool(parse(value))
        except ValueError:
            return False

    return test


def _are_weights(value: Any) -> bool:
    numbers = list(value.values()) if isinstance(value, dict) else value
    return isinstance(numbers, list) and bool(numbers) and all(map(_is_number, numbers))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_rate(value: Any) -> bool:
    return _is_number(value) and value > 0


def _optional(expect: Expect) -> Expect:
    return Expect(expect.words, lambda value: value is None or expect.test(value))


_COUNT = Expect("a positive integer", _is_count)
_NUMBER = Expect("an integer, 0 or more", lambda value: _is_count(value, 0))
_PATH = Expect("a path", _is_text)
_PATHS = Expect(
    "a path, or a mapping of names to paths", lambda value: _are_keys(value) and not isinstance(value, list)
)
_KEYS = Expect("a key, a list of keys, or a mapping of names to keys", _are_keys)
_KEY = Expect("a key", _is_text)
_FUNCTION = Expect(
    '"file.py:function" or "package.module:function"', lambda v: _is_text(v) and all(v.rpartition(":")[::2])
)
_ARGUMENTS = Expect("a mapping of argument names to values", lambda v: isinstance(v, dict) and all(map(_is_text, v)))
_NAME = Expect("a name", _is_text)
_LAYERS = Expect("a list of layer names", lambda value: isinstance(value, list) and all(map(_is_text, value)))
_WEIGHTS = Expect("a list of numbers, or a mapping of outputs to numbers", _are_weights)
_SIZE = Expect(SIZE_WORDS, _is_understood(parse_size))
_TRUTH = Expect("true or false", lambda value: isinstance(value, bool))
_NAMED = Expect("a name, or one name with its arguments such as {adamw: {learning_rate: 0.001}}", _is_named)
_LOSS = Expect("a name, one name with its arguments, or a mapping of outputs to those", _is_loss)
_METRICS = Expect("a list of names, or a mapping of outputs to lists of names", _are_metrics)


class ArrayFiles(Section):
    """Files of single arrays (.npy), mapped into memory."""

    x: Annotated[str | dict[str, str], _PATHS]
    y: Annotated[str | dict[str, str] | None, _optional(_PATHS)] = None
    sample_weight: Annotated[str | None, _optional(_PATH)] = None


class DataSource(Section):
    """Where rows come from: one `npz` file and its keys, or `arrays`."""

    not_yet: ClassVar = ("images", "tfrecord", "csv", "text", "augment", "size", "shuffle", "limit", "cache", "pad")
    instead: ClassVar = ("arrays", "npz")
    npz: Annotated[str | None, _optional(_PATH)] = None
    arrays: ArrayFiles | None = None
    x: Annotated[Keys | None, _optional(_KEYS)] = None
    y: Annotated[Keys | None, _optional(_KEYS)] = None
    sample_weight: Annotated[str | None, _optional(_KEY)] = None

    @model_validator(mode="before")
    @classmethod
    def _default_keys(cls, data: Any) -> Any:
        return {"x": "x", "y": "y", **data} if isinstance(data, dict) and data.get("npz") is not None else data

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind for kind in ("arrays", "npz") if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise expected("exactly one of arrays, npz", " and ".join(kinds) or "none of them")
        keys = [key for key in ("x", "y", "sample_weight") if getattr(self, key) is not None]
        if self.arrays and keys:
            raise expected("x, y and sample_weight inside arrays", f"{' and '.join(keys)} beside it")
        return self


class Data(Section):
    """The rows to train on, and those to validate with after each epoch."""

    not_yet: ClassVar = ("test", "calibration")
    train: DataSource
    validation: DataSource | None = None


class BatchRules(Section):
    """Rows per step and virtual replicas; or rows per device, from which both follow."""

    global_size: Annotated[int | None, _optional(_COUNT)] = None
    virtual_replicas: Annotated[int | None, _optional(_COUNT)] = None
    per_device: Annotated[int | None, _optional(_COUNT)] = None

    @model_validator(mode="before")
    @classmethod
    def _default_size(cls, data: Any) -> Any:
        """Without a size, the batch has 32 rows as in Keras."""
        return {"global_size": 32, **data} if isinstance(data, dict) and data.get("per_device") is None else data

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.per_device is not None and self.global_size is not None:
            raise expected("one of global_size, per_device", "both")
        return self


class CompileRules(Section):
    """Arguments of `model.compile`."""

    not_yet: ClassVar = ("schedule",)
    optimizer: Annotated[Named, _NAMED]
    loss: Annotated[Named | dict[str, Named], _LOSS]
    loss_weights: Annotated[list[float] | dict[str, float] | None, _optional(_WEIGHTS)] = None
    metrics: Annotated[list[Named] | dict[str, list[Named]], _METRICS] = Field(default_factory=list)
    weighted_metrics: Annotated[list[Named] | dict[str, list[Named]], _METRICS] = Field(default_factory=list)
    steps_per_execution: Annotated[int, _COUNT] = 1
    jit_compile: Annotated[bool, _TRUTH] = False
    run_eagerly: Annotated[bool, _TRUTH] = False


class CheckpointRules(Section):
    """When to save, and which checkpoints stay."""

    every: Annotated[str, Expect(EVERY_WORDS, _is_understood(parse_every))] = "1 epoch"
    keep_last: Annotated[int | str, Expect("a positive integer or all", lambda v: v == "all" or _is_count(v))] = 3
    keep_best: Annotated[int | None, _optional(_NUMBER)] = None
    monitor: Annotated[str | None, _optional(_NAME)] = None
    mode: Annotated[str, Expect(f"one of {', '.join(MODES)}", lambda value: value in MODES)] = "auto"
    keep_every: Annotated[int | None, _optional(_COUNT)] = None
    max_total_size: Annotated[int | str | None, _optional(_SIZE)] = None
    min_free: Annotated[int | str | None, _optional(_SIZE)] = None
    max_shard_size: Annotated[int | str, _SIZE] = "5 GiB"
    split: Annotated[str, Expect(f"one of {', '.join(SPLITS)}", lambda value: value in SPLITS)] = "size"

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        try:
            self.keep  # noqa: B018 - to see whether it can be understood
        except ValueError as error:
            raise PydanticCustomError("keep", "{text}", {"text": str(error)}) from error
        return self

    @property
    def keep(self) -> Keep:
        """The retention rule."""
        return keep_rule(
            last=None if self.keep_last == "all" else int(self.keep_last),
            best=self.keep_best,
            monitor=self.monitor,
            mode=self.mode,
            every=self.keep_every,
            max_total_size=self.max_total_size,
            min_free=self.min_free,
        )

    @property
    def interval(self) -> Every:
        """`every`, understood."""
        return parse_every(self.every)


class PhaseRules(Section):
    """One of several fits that follow each other."""

    epochs: Annotated[int, _COUNT]
    name: Annotated[str, _NAME]
    freeze: Annotated[list[str], _LAYERS] = Field(default_factory=list)
    unfreeze: Annotated[list[str], _LAYERS] = Field(default_factory=list)
    learning_rate: Annotated[float | None, _optional(Expect("a number above 0", _is_rate))] = None


class LimitRules(Section):
    """Where a start of the run ends early."""

    max_time: Annotated[float | str | None, _optional(Expect(DURATION_WORDS, _is_understood(parse_duration)))] = None
    max_steps: Annotated[int | None, _optional(_COUNT)] = None
    batches_per_epoch: Annotated[int | None, _optional(_COUNT)] = None


class Recipe(Section):
    """A whole run. `base_dir` is the folder of the recipe file, from which its paths start."""

    not_yet: ClassVar = (
        "callbacks",
        "strategy",
        "reduction",
    )
    model: Annotated[str, _FUNCTION]
    model_args: Annotated[dict[str, Any], _ARGUMENTS] = Field(default_factory=dict)
    data: Data
    batch: BatchRules = BatchRules(global_size=32)
    epochs: Annotated[int | None, _optional(_COUNT)] = None
    phases: list[PhaseRules] | None = None
    init_from: Annotated[str | None, _optional(_PATH)] = None
    compile: CompileRules | None = None
    precision: Annotated[str, Expect(f"one of {', '.join(PRECISIONS)}", lambda value: value in PRECISIONS)] = "auto"
    checkpoint: CheckpointRules = CheckpointRules()
    on_nonfinite: Annotated[str, Expect("raise, skip or rollback", lambda v: v in ("raise", "skip", "rollback"))] = (
        "raise"
    )
    on_oom: Annotated[str, Expect("split or raise", lambda v: v in ("split", "raise"))] = "split"
    loggers: Annotated[list[str], Expect(f"a list of any of {', '.join(SINKS)}", _are_loggers)] = Field(
        default_factory=list
    )
    limits: LimitRules = LimitRules()
    seed: Annotated[int, _NUMBER] = 0
    _base_dir: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _one_phase(cls, data: Any) -> Any:
        """Turn `phases: [{epochs: n}]` into `epochs: n`, and name phases that have no name by their number."""
        phases = data.get("phases") if isinstance(data, dict) else None
        if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
            return data
        if len(phases) == 1 and set(phases[0]) == {"epochs"} and "epochs" not in data:
            return {**{key: value for key, value in data.items() if key != "phases"}, **phases[0]}
        return {**data, "phases": [{"name": f"phase {i}", **phase} for i, phase in enumerate(phases, 1)]}

    @model_validator(mode="after")
    def _epochs_or_phases(self) -> Self:
        if (self.epochs is None) == (not self.phases):
            raise expected("one of epochs, phases", "none of them" if self.epochs is None else "both")
        names = [phase.name for phase in self.phases or ()]
        if len(set(names)) < len(names):
            raise expected("a name of its own for each phase", shown(names))
        return self

    @property
    def total_epochs(self) -> int:
        """The epochs of all phases."""
        return self.epochs or sum(phase.epochs for phase in self.phases or ())

    @property
    def base_dir(self) -> Path:
        """The folder that the recipe's paths start from."""
        return self._base_dir

    def canonical(self) -> dict[str, Any]:
        """Return the complete recipe as JSON values, defaults included and paths as written; equal for equal runs."""
        return self.model_dump(mode="json")


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe at `path` with `key.sub=value` overrides; raise UsageError with one line for each error."""
    path = Path(path)
    return parse_recipe(apply_overrides(read_yaml(path), overrides), base_dir=path.parent, name=str(path))


def parse_recipe(data: dict[str, Any], *, base_dir: Path, name: str = "the recipe") -> Recipe:
    """Return the recipe in `data`, whose paths start from `base_dir`."""
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise UsageError(
            "ANY-RECIPE-004",
            "\n".join(explain(error, Recipe)),
            hint=f"correct {name}, or the key=value on the command line",
        ) from error
    recipe._base_dir = base_dir
    return recipe
