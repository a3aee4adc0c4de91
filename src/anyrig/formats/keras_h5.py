"""Keras's older HDF5 layout (`.h5`, `.hdf5`): whole models and weights of Keras 0 to 2, tf.keras, and Keras 3's writer.

Lists of names in attributes say which datasets there are and in which order Keras assigns them:
`layer_names` of the file or of its group `model_weights`, `weight_names` of each layer and of `optimizer_weights`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from anyrig.formats.contents import Budget, Contents, FileTensor, damaged
from anyrig.formats.hdf5 import Tree
from anyrig.formats.hdf5_dataset import Stored
from anyrig.formats.jsontext import json_object

_TOP_LEVEL = "top_level_model_weights"
_OPTIMIZER = "optimizer_weights"
_OF_KERAS_3 = (
    "momentum", "velocity", "velocity_hat", "accumulator", "accumulated_grad", "accumulated_delta_var", "norm",
    "average_gradient", "linear", "r", "c", "v", "m", "u", "average", "gradient_accumulator",
)  # fmt: skip
"""Slots in the names of Keras 3, which are behind the weight's name: `adam/dense_kernel_momentum`."""
_OWN_ATTRIBUTES = {"model_config", "training_config", "keras_version", "layer_names", "nb_layers", "weight_names"}


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight as the lists name it."""

    layer: str
    listed: str
    stored: Stored

    @property
    def plain(self) -> str:
        return undecorated(self.listed)

    def names(self) -> tuple[str, str, str]:
        """Return its possible names, the shortest first; the last is no other's."""
        whole = f"{self.layer}/{self.plain}"
        return self.plain if self.plain.startswith(f"{self.layer}/") else whole, whole, f"{self.layer}/{self.listed}"


def undecorated(name: str) -> str:
    """Return the name of a variable without the output number that TensorFlow adds (`kernel:0`)."""
    return name.removesuffix(":0")


def is_legacy(tree: Tree) -> bool:
    """Tell whether a tree has this layout."""
    return "model_config" in tree.attributes[""] or _root(tree) is not None


def legacy(tree: Tree, budget: Budget) -> Contents:
    """Return the contents of a file with this layout, in the order in which Keras assigns the weights."""
    root = _root(tree)
    if root is None:
        raise damaged(tree.image.path, "it describes a model and has no list of its layers")
    weights = tuple(_weights(tree, root))
    named = tuple(_named(tree, weights))
    optimizer = tuple(_optimizer(tree, weights, named))
    listed = {weight.stored.path for weight in weights}
    listed |= {_joined(_OPTIMIZER, name) for name in _listed(tree, _OPTIMIZER)}
    others = tuple(found.tensor(path, role="other") for path, found in tree.datasets.items() if path not in listed)
    configs = {
        name: json_object(tree.image.path, f"its {name}", text, budget)
        for name in ("model_config", "training_config")
        if (text := tree.text("", name)) is not None
    }
    version = tree.text("", "keras_version") or tree.text(root, "keras_version")
    return Contents(
        format="keras-h5" if "model_config" in configs else "keras-h5-weights",
        words="a Keras model in HDF5" if "model_config" in configs else "Keras weights in HDF5",
        path=tree.image.path,
        tensors=(*named, *optimizer, *others),
        config=configs.get("model_config"),
        compile_config=configs.get("training_config"),
        written_by={"keras": version} if version else {},
        metadata=_metadata(tree, root),
        files=((tree.image.file, tree.image.size),),
        notes=(f"{len(others)} tensors are in no list of the file: Keras would not read them",) if others else (),
    )


def _root(tree: Tree) -> str | None:
    return next((group for group in ("model_weights", "") if _layers(tree, group) is not None), None)


def _layers(tree: Tree, root: str) -> tuple[str, ...] | None:
    names = tree.texts(root, "layer_names")
    if names is not None:
        return names
    number = _count(tree, root, "nb_layers")
    if number is None:
        return None
    return tuple(f"layer_{index}" for index in range(number))


def _listed(tree: Tree, group: str) -> tuple[str, ...]:
    names = tree.texts(group, "weight_names")
    if names is not None:
        return names
    number = _count(tree, group, "nb_params") or 0
    return tuple(f"param_{index}" for index in range(number))


def _count(tree: Tree, group: str, name: str) -> int | None:
    """Return how many layers or tensors a file of before Keras 1.0 says there are; their names are numbers."""
    number = tree.attributes.get(group, {}).get(name)
    return number if isinstance(number, int) and 0 <= number <= len(tree.attributes) + len(tree.datasets) else None


def _metadata(tree: Tree, root: str) -> dict[str, object]:
    found = {**tree.attributes[root], **tree.attributes[""]}
    return {name: value for name, value in found.items() if name.rstrip("0123456789") not in _OWN_ATTRIBUTES}


def _weights(tree: Tree, root: str) -> Iterator[_Weight]:
    layers = _layers(tree, root) or ()
    for layer in (*layers, _TOP_LEVEL):
        group = _joined(root, layer)
        if group not in tree.attributes:
            if layer != _TOP_LEVEL:
                raise damaged(tree.image.path, f"it lists the layer {layer!r}, which is not there")
            continue
        for listed in _listed(tree, group):
            yield _Weight(layer, listed, _found(tree, _joined(group, listed)))


def _joined(*names: str) -> str:
    """Return the path that HDF5 finds under these names."""
    return "/".join(part for name in names for part in name.split("/") if part not in ("", "."))


def _found(tree: Tree, path: str) -> Stored:
    if path not in tree.datasets:
        raise damaged(tree.image.path, f"it lists the tensor {path!r}, which is not there")
    return tree.datasets[path]


def _named(tree: Tree, weights: Sequence[_Weight]) -> Iterator[FileTensor]:
    """Give each weight the shortest of its names that no other has."""
    levels = [0] * len(weights)
    while True:
        names = [weight.names()[level] for weight, level in zip(weights, levels, strict=True)]
        counts = Counter(names)
        again = [index for index, name in enumerate(names) if counts[name] > 1]
        if not again:
            break
        if all(levels[index] == 2 for index in again):
            raise damaged(tree.image.path, f"it lists the tensor {names[again[0]]!r} twice")
        for index in again:
            levels[index] = min(2, levels[index] + 1)
    for weight, name in zip(weights, names, strict=True):
        yield weight.stored.tensor(name, aliases=(weight.listed, weight.plain))


def _optimizer(tree: Tree, weights: Sequence[_Weight], named: Sequence[FileTensor]) -> Iterator[FileTensor]:
    variables = only_once((weight.plain, tensor.name) for weight, tensor in zip(weights, named, strict=True))
    flat = only_once((name.replace("/", "_"), of) for name, of in variables.items())
    listed = _listed(tree, _OPTIMIZER)
    counts = Counter(undecorated(name) for name in listed)
    for name in listed:
        plain = undecorated(name) if counts[undecorated(name)] == 1 else name
        of, slot = slot_of(plain, variables, flat)
        stored = _found(tree, _joined(_OPTIMIZER, name))
        yield stored.tensor(_joined(_OPTIMIZER, plain), aliases=(name,), role="optimizer", of=of, slot=slot)


def only_once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a mapping, without keys that come twice."""
    known = list(pairs)
    counts = Counter(key for key, _ in known)
    return {key: value for key, value in known if counts[key] == 1}


def slot_of(name: str, variables: Mapping[str, str], flat: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the weight's name and the slot of an optimizer's variable, where its name tells.

    `Adam/m/dense/kernel` (tf.keras from 2.11), `training/Adam/dense/kernel/m` (before), `adam/dense_kernel_momentum`
    (Keras 3).
    """
    parts = name.split("/")
    for at in range(1, len(parts)):
        if (of := variables.get("/".join(parts[at:]))) is not None:
            return of, parts[at - 1]
        if (of := variables.get("/".join(parts[at:-1]))) is not None:
            return of, parts[-1]
    found = [(flat[start], slot) for slot in _OF_KERAS_3 if (start := parts[-1].removesuffix(f"_{slot}")) in flat]
    return found[0] if len(found) == 1 else (None, None)
