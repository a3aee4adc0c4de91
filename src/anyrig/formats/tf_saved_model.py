"""SavedModel folders: variables, signatures, tags, assets and, where Keras 2 wrote one, the model's configuration.

Driven by `saved_model.pb`, given itself or by its folder. It is read as data: no function of it is run, no graph is
built. The variables are those of the checkpoint in `variables/`, with the names of its object graph. No link is
followed, and nothing outside the folder is opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from anyrig.formats.contents import Budget, Contents, FileTensor, Signature, TensorSignature, over_budget, unsafe
from anyrig.formats.jsontext import json_object
from anyrig.formats.protobuf import Message, parse
from anyrig.formats.tf_bundle import Prefix, open_bundle
from anyrig.formats.tf_checkpoint import contents_of
from anyrig.formats.tf_table import newer, read_bytes, size_of
from anyrig.formats.tf_types import shape_of, type_of

MODEL_FILE = "saved_model.pb"
_VARIABLES = "variables"
_ASSETS = "assets"
_KEPT_KERAS = "keras_metadata.pb"
_FINGERPRINT = "fingerprint.pb"
_KNOWN_SCHEMA = 1
_SERVING = "serve"
_INTERNAL = "__saved_model"  # signatures that initialise, and are not for calling


def recognize(path: Path) -> Path | None:
    """Return the folder of a SavedModel, which may be given by its `saved_model.pb`."""
    file = path / MODEL_FILE if path.is_dir() else path
    return file.parent if file.name == MODEL_FILE and file.is_file() else None


def read(path: Path, budget: Budget) -> Contents:
    """Return what the SavedModel in a folder holds."""
    model = parse(_whole(path / MODEL_FILE, budget), path / MODEL_FILE, budget)
    if model.integer(1) > _KNOWN_SCHEMA:
        raise newer(path / MODEL_FILE, model.integer(1), _KNOWN_SCHEMA)
    graphs = list(model.messages(2))
    if not graphs:
        raise model.damaged("no graph is stored")
    tags = [graph.message(1).texts(4) for graph in graphs]
    graph = next((one for one, its in zip(graphs, tags, strict=True) if _SERVING in its), graphs[0])
    variables = _variables(path, budget)
    keras = _keras_config(path, graph, budget)
    return Contents(
        format="savedmodel",
        words="a SavedModel",
        path=path,
        tensors=tuple(_inside(tensor, path) for tensor in variables.tensors) if variables else (),
        config={name: keras[name] for name in ("class_name", "config") if name in keras} or None,
        compile_config=keras.get("training_config") or None,
        written_by=_written_by(graph, keras),
        signatures=_signatures(graph),
        metadata={"tags": tags, **_fingerprint(path, budget)},
        assets={name: partial(_whole, path / _ASSETS / name, budget) for name in _asset_names(path, graph)},
        files=_files(path, variables, budget),
        checked=variables.checked if variables else (),
        unchecked=("the graph and its signatures (saved_model.pb)", *(variables.unchecked if variables else ())),
        notes=_notes(graphs, graph, variables, keras),
    )


def _whole(file: Path, budget: Budget) -> bytes:
    if (size := size_of(file)) > budget.header_bytes:
        raise over_budget(file, f"it has {size} bytes")
    return read_bytes(file, 0, size)


def _variables(path: Path, budget: Budget) -> Contents | None:
    folder = path / _VARIABLES
    if folder.is_symlink():
        raise unsafe(folder, "it is a link")
    prefix = Prefix(folder, _VARIABLES)
    return contents_of(open_bundle(prefix, budget)) if prefix.index.exists() or prefix.index.is_symlink() else None


def _inside(tensor: FileTensor, path: Path) -> FileTensor:
    return dataclasses.replace(tensor, origin=path, file=f"{_VARIABLES}/{tensor.file}")


def _signatures(graph: Message) -> tuple[Signature, ...]:
    """Return the functions that are offered, sorted by name as their inputs and outputs are."""
    offered = {name: one for name, one in graph.mapping(5).items() if not name.startswith(_INTERNAL)}
    return tuple(Signature(name, _ends(one.mapping(1)), _ends(one.mapping(2))) for name, one in sorted(offered.items()))


def _ends(tensors: Mapping[str, Message]) -> tuple[TensorSignature, ...]:
    found = []
    for name, info in sorted(tensors.items()):
        shape = shape_of(info.message(3))
        sizes = None if shape is None else tuple(None if size < 0 else size for size in shape)
        found.append(TensorSignature(name, type_of(info.integer(2))[0], sizes))
    return tuple(found)


def _keras_config(path: Path, graph: Message, budget: Budget) -> dict[str, Any]:
    """Return what Keras 2 says of the outermost object: in a file of its own, or within the object graph."""
    file = path / _KEPT_KERAS
    if file.exists() or file.is_symlink():
        for node in parse(_whole(file, budget), file, budget).messages(1):
            if node.text(3) == "root":
                return json_object(file, "the configuration of the model", node.text(5), budget)
    for node in list(graph.message(7).messages(1))[:1]:
        user_object = node.message(4)
        if user_object.text(1).startswith("_tf_keras") and 3 in user_object:
            return json_object(path / MODEL_FILE, "the configuration of the model", user_object.text(3), budget)
    return {}


def _written_by(graph: Message, keras: Mapping[str, Any]) -> dict[str, str]:
    said = {"tensorflow": graph.message(1).text(5), "keras": keras.get("keras_version")}
    return {program: version for program, version in said.items() if isinstance(version, str) and version}


def _fingerprint(path: Path, budget: Budget) -> dict[str, Any]:
    file = path / _FINGERPRINT
    if not file.exists() and not file.is_symlink():
        return {}
    stored = parse(_whole(file, budget), file, budget)
    names = ("saved_model_checksum", "graph_def_program_hash", "signature_def_hash", "saved_object_graph_hash")
    return {"fingerprint": {name: stored.integer(number) for number, name in enumerate((*names, "checkpoint_hash"), 1)}}


def _asset_names(path: Path, graph: Message) -> tuple[str, ...]:
    names = sorted({asset.text(2) for asset in graph.messages(6)})
    for name in names:
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise unsafe(path / MODEL_FILE, f"it names the asset {name!r}, which is no plain name")
    if names and (path / _ASSETS).is_symlink():
        raise unsafe(path / _ASSETS, "it is a link")
    return tuple(names)


def _files(path: Path, variables: Contents | None, budget: Budget) -> tuple[tuple[str, int], ...]:
    beside = [name for name in (MODEL_FILE, _KEPT_KERAS, _FINGERPRINT) if (path / name).exists()]
    own = [(name, size_of(path / name)) for name in beside]
    return (*own, *((f"{_VARIABLES}/{name}", size) for name, size in (variables.files if variables else ())))


def _notes(
    graphs: Sequence[Message], graph: Message, variables: Contents | None, keras: Mapping[str, Any]
) -> tuple[str, ...]:
    notes = (
        list(variables.notes) if variables else ["It has no variables; weights, if any, are constants of its graph."]
    )
    if len(graphs) > 1:
        chosen = ", ".join(graph.message(1).texts(4))
        notes.append(f"It holds {len(graphs)} graphs; the one with the tags {chosen} is described.")
    if not keras:
        notes.append("The architecture is in it as a graph of operations, not as a configuration of Keras.")
    return tuple(notes)
