"""Fill a Keras model from the same file that its architecture came from, in Keras 3's layout.

Keras's own loading code runs, so that layers with a way of their own (LoRA, quantisation, vocabularies) get what they
stored; but it reads from `Contents`, whose readers take nothing on trust, and every array is accounted for: one that no
layer takes, or a layer that finds none, is an error and not a warning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.saving import saving_lib

from anyrig.errors import AnyrigError
from anyrig.exchange.file_order import trainable_in_order
from anyrig.exchange.optimizer_state import derive, numbered_slots
from anyrig.formats.contents import Contents, FileTensor

_OLD_GROUP = "_layer_checkpoint_dependencies"  # what Keras 2.12 to 2.15 calls the layers of a model
_OPTIMIZER = "optimizer/vars/"
_SHOWN = 10


def fill_from_tree(
    model: keras.Model, contents: Contents, renamed: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Load all arrays of a `.keras` or `.weights.h5` file into a built `model` of the same architecture.

    `renamed` are names of layers in the file that the model has others for.
    Returns the file of each stored tensor that was loaded, and the reason for each that was not (an optimizer's, where
    the model has none). Raises ANY-OPEN-042, naming what is left on either side.
    """
    old = _of_keras_2(contents)
    early = {} if old else _before_the_first_step(model, contents)
    aside = {id(getattr(model, "optimizer", None))} if contents.format == "keras-2" else set(early)
    store = _Store(contents, [*old.values(), *(tensor for _, tensors in early.values() for tensor in tensors)])
    failed: set[int] = set()
    messages: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        assets = _unpacked(contents, Path(folder))
        saving_lib._load_state(
            model,
            weights_store=store,
            assets_store=assets,
            inner_path="",
            visited_saveables=aside,
            failed_saveables=failed,
            error_msgs=messages,
        )
    kept = _fill_optimizer(model, contents, old, renamed)
    for variables, tensors in early.values():
        for variable, tensor in zip(
            variables, tensors, strict=False
        ):  # a wrapper's file repeats those of what is inside
            variable.assign(tensor.array())
        kept |= {tensor.name: tensor.file for tensor in tensors}
    left = dict.fromkeys(store.tensors.keys() - store.taken, "nothing in the model takes it")
    ignored = {name: _why(name, model) for name in left if not name.startswith("layers/") and _why(name, model)}
    wrong = [f"  wanted  {_label(layer)}: {_first_line(error)}" for layer, error in messages.values()]
    wrong += [f"  stored  {name} {list(store.tensors[name].shape)}" for name in sorted(left.keys() - ignored.keys())]
    if wrong:
        raise does_not_fit(contents, wrong)
    ignored |= {t.name: "today's optimizer keeps no such state" for t in old.values() if t.name not in kept}
    return {name: store.tensors[name].file for name in store.taken} | kept, ignored


def _of_keras_2(contents: Contents) -> dict[int, FileTensor]:
    """Return the variables of an optimizer of Keras 2, by their numbers, which Keras 3 would take for others."""
    if contents.format != "keras-2":
        return {}
    named = [(tensor.name.removeprefix(_OPTIMIZER), tensor) for tensor in contents.tensors]
    return {int(rest): tensor for rest, tensor in named if rest.isdigit() and tensor.name.startswith(_OPTIMIZER)}


def _before_the_first_step(
    model: keras.Model, contents: Contents
) -> dict[int, tuple[list[keras.Variable], list[FileTensor]]]:
    """Return the optimizers that were stored before they had slots: by `id`, own first variables and what is stored.

    Keras makes slots with the first step, or when it loads the model, and then takes nothing of such an optimizer.
    """
    outer = vars(model).get("optimizer")
    places = {"optimizer": outer, "optimizer/inner_optimizer": getattr(outer, "inner_optimizer", None)}
    found = {}
    for place, optimizer in places.items():
        stored = [tensor for tensor in contents.tensors if tensor.name.rpartition("/")[0] == f"{place}/vars"]
        if optimizer is None or not stored or len(stored) >= len(optimizer.variables):
            continue
        tensors = sorted(stored, key=lambda tensor: int(tensor.name.rpartition("/")[2]))
        at_first = type(optimizer).from_config(optimizer.get_config())
        if [tensor.shape for tensor in tensors] == [tuple(variable.shape) for variable in at_first.variables]:
            found[id(optimizer)] = optimizer._variables[: len(at_first._variables)], tensors
    return found


def _fill_optimizer(
    model: keras.Model, contents: Contents, tensors: Mapping[int, FileTensor], renamed: Mapping[str, str]
) -> dict[str, str]:
    if not tensors or not model.compiled or contents.config is None:
        return {}
    model.optimizer.build(model.trainable_variables)
    order = trainable_in_order(model, contents.config, renamed)
    pairs = numbered_slots(model.optimizer, tensors, order) if len(order) == len(model.trainable_variables) else []
    for tensor, variable in pairs:
        variable.assign(tensor.array())
    if pairs:
        derive(model.optimizer)
    return {tensor.name: tensor.file for tensor, _ in pairs}


def does_not_fit(contents: Contents, wrong: list[str]) -> AnyrigError:
    """Return the error for arrays that do not fill the model that their own file describes."""
    more = [f"  ... and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    return AnyrigError(
        "ANY-OPEN-042",
        "\n".join([f"the arrays of {contents.path} do not fill the model that it describes", *wrong[:_SHOWN], *more]),
        hint=f"see what it holds with: anyrig inspect --tensors {contents.path}; fill a model of yours with into=",
    )


def _why(name: str, model: keras.Model) -> str:
    """Say why an array may be left: it is no part of the model itself."""
    if name.startswith("optimizer/"):
        return "" if model.compiled else "the model has no optimizer"
    return "a metric begins anew" if name.startswith(("metrics/", "compile_metrics/", "_metrics/")) else ""


def _label(layer: Any) -> str:
    return f"{type(layer).__name__} {getattr(layer, 'name', '')!r}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _unpacked(contents: Contents, folder: Path) -> saving_lib.DiskIOStore | None:
    """Write the assets where Keras's layers can read them."""
    if not contents.assets:
        return None
    for name, read in contents.assets.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read())
    return saving_lib.DiskIOStore(str(folder), mode="r")


class _Store(saving_lib.H5IOStore):
    """What Keras asks for a layer's arrays, answered from `Contents`; `taken` has the names that were read."""

    def __init__(self, contents: Contents, without: Collection[FileTensor]) -> None:
        apart = {tensor.name for tensor in without}
        self.tensors = {t.name: t for t in contents.tensors if t.name not in apart}
        self.taken: set[str] = set()
        self._groups: dict[str, dict[str, FileTensor]] = {}
        for tensor in self.tensors.values():
            group, _, key = tensor.name.replace(_OLD_GROUP, "layers").rpartition("/")
            self._groups.setdefault(group, {})[key] = tensor

    def __bool__(self) -> bool:
        return True

    def get(self, path: str) -> _Group:
        """Return the arrays of the layer at `path`."""
        return _Group(self._groups.get(f"{path}/vars" if path else "vars", {}), self.taken)

    def has_path(self, path: str) -> bool:
        """Tell whether anything is stored below `path`."""
        return any(group == path or group.startswith(f"{path}/") for group in self._groups)


class _Group:
    """The arrays of one layer by key; read when they are asked for."""

    def __init__(self, tensors: dict[str, FileTensor], taken: set[str]) -> None:
        self._tensors, self._taken = tensors, taken

    def __getitem__(self, key: str) -> np.ndarray[Any, Any]:
        tensor = self._tensors[key]
        self._taken.add(tensor.name)
        return tensor.array()

    def get(self, key: str, default: Any = None) -> Any:
        """Return an array, or `default` where there is none."""
        return self[key] if key in self._tensors else default

    def keys(self) -> list[str]:
        """Return the keys."""
        return list(self._tensors)

    def values(self) -> list[np.ndarray[Any, Any]]:
        """Return all arrays."""
        return [self[key] for key in self._tensors]

    def items(self) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """Return keys and arrays."""
        return [(key, self[key]) for key in self._tensors]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __bool__(self) -> bool:
        return bool(self._tensors)
