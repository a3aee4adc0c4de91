"""HDF5 files as a flat tree: groups with their attributes, datasets with types and places, all checked before use.

Anything that would leave the file is refused wherever it stands: links by name or to other files, external storage,
virtual datasets. So is what makes more of itself than is stored: shapes without data, texts that are repeated by
reference, groups inside themselves. The whole file is walked, which costs some 50 us for each object, and no value is
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anyrig.formats.contents import Budget, damaged, over_budget, unsafe
from anyrig.formats.hdf5_dataset import Stored, stored
from anyrig.formats.hdf5_image import Image, opened
from anyrig.formats.hdf5_texts import REFERENCE_BYTES, references

Value = str | int | float | tuple["str | int | float", ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """What an HDF5 file holds: by path (`model_weights/dense`, the root is empty), in the order of the file's index."""

    image: Image
    attributes: Mapping[str, Mapping[str, Value]]
    datasets: Mapping[str, Stored]

    def texts(self, group: str, name: str) -> tuple[str, ...] | None:
        """Return a list of texts, which Keras cuts into `name0`, `name1`, ... when it is long, else None."""
        found = self.attributes.get(group, {})
        if name in found:
            return _texts(found[name])
        parts: list[str] = []
        number = 0
        while (part := found.get(f"{name}{number}")) is not None:
            parts += _texts(part)
            number += 1
        return tuple(parts) if number else None

    def text(self, group: str, name: str) -> str | None:
        """Return an attribute that is one text, else None."""
        value = self.attributes.get(group, {}).get(name)
        return value if isinstance(value, str) else None


def checksums_of(trees: Sequence[Tree]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return, in words, for what the files have checksums and for what they have none (see `Contents`)."""
    found = [stored for tree in trees for stored in tree.datasets.values()]
    summed = sum(stored.summed for stored in found)
    checked = [f"the Fletcher-32 of each chunk of {summed} tensors"] if summed else []
    checked += ["the checksums of the file's headers"] if any(tree.image.head(9)[8:] >= b"\2" for tree in trees) else []
    bare = len(found) - summed
    return tuple(checked), ((f"the numbers of {bare} tensors: HDF5 stores no checksum unless asked",) if bare else ())


def _texts(value: Value) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, tuple) else (str(value),)


def parse(image: Image, budget: Budget) -> Tree:
    """Return the tree of an HDF5 file.

    Raises ANY-FORMAT-002 for a damaged file, 003 for one that exceeds the budget, 004 for one with links.
    """
    with opened(image) as file:
        walk = _Walk(image, budget, file.id.get_create_plist().get_userblock())
        walk.group(file.id, "", 0)
    return Tree(image, walk.attributes, walk.datasets)


@dataclass(slots=True)
class _Walk:
    image: Image
    budget: Budget
    base: int
    attributes: dict[str, dict[str, Value]] = field(default_factory=dict)
    datasets: dict[str, Stored] = field(default_factory=dict)
    _objects: int = 0
    _text_bytes: int = 0
    _seen: set[int] = field(default_factory=set)
    _stored: dict[int, Stored] = field(default_factory=dict)
    _data_bytes: int = 0

    def group(self, group: Any, path: str, depth: int) -> None:
        if depth > self.budget.depth:
            raise over_budget(self.image.path, f"its groups are nested more than {self.budget.depth} deep")
        if self._again(group):
            raise damaged(self.image.path, f"the group {path!r} stands in it twice")
        self._count(len(group))
        self.attributes[path] = dict(self._attributes(group, path))
        for name in list(group):
            self._member(group, name, f"{path}/{_decoded(name)}".lstrip("/"), depth)

    def _member(self, group: Any, name: bytes, path: str, depth: int) -> None:
        import h5py

        if b"/" in name or name == b".":
            raise damaged(self.image.path, f"{path!r} is no name")
        if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            raise unsafe(self.image.path, f"{path!r} in it is a link to another place, maybe in another file")
        found = h5py.h5o.open(group, name)
        if isinstance(found, h5py.h5g.GroupID):
            self.group(found, path, depth + 1)
        elif isinstance(found, h5py.h5d.DatasetID):
            self._dataset(found, path)

    def _dataset(self, found: Any, path: str) -> None:
        import h5py

        tag = dict(self._attributes(found, path, only=b"dtype")).get("dtype")
        address = h5py.h5o.get_info(found).addr
        if address not in self._stored:
            dataset = stored(self.image, found, path, tag if isinstance(tag, str) else None, self.budget, self.base)
            self._stored[address] = dataset
            self._data_bytes += dataset.stored_bytes + (dataset.nbytes if dataset.varying else 0)
        self.datasets[path] = replace(self._stored[address], path=path)
        if self._data_bytes > self.image.size:
            raise damaged(self.image.path, f"up to {path!r}, its tensors have more bytes than the whole file")

    def _attributes(self, owner: Any, path: str, only: bytes | None = None) -> Iterator[tuple[str, Value]]:
        import h5py

        count = h5py.h5a.get_num_attrs(owner)
        self._count(count)
        for index in range(count):
            attribute = h5py.h5a.open(owner, index=index)
            if only is None or attribute.name == only:
                value = self._value(owner, attribute, path)
                if value is not None:
                    yield _decoded(attribute.name), value

    def _value(self, owner: Any, attribute: Any, path: str) -> Value | None:
        """Return texts and numbers, one or a list of them; anything else has no meaning here."""
        import h5py
        import numpy as np

        kind, shape = attribute.get_type(), attribute.shape
        known = (h5py.h5t.STRING, h5py.h5t.INTEGER, h5py.h5t.FLOAT)
        if shape is None or len(shape) > 1 or kind.get_class() not in known:
            return None
        count = shape[0] if shape else 1
        varying = kind.get_class() == h5py.h5t.STRING and kind.is_variable_str()
        self._spend(count * kind.get_size(), path)
        if varying and not self._checked(owner, attribute, path, count):
            return None
        read = np.empty(shape, attribute.dtype)
        attribute.read(read)
        items = [_decoded(item) if isinstance(item, bytes) else item for item in read.reshape(-1).tolist()]
        self._spend(sum(len(item) for item in items if isinstance(item, str)), path)
        return tuple(items) if shape else items[0]

    def _checked(self, owner: Any, attribute: Any, path: str, count: int) -> bool:
        """Count texts before the library makes room for them; tell whether that could be done."""
        import h5py

        header = h5py.h5o.get_info(owner).addr
        with self.image.mapped() as data:
            start = self.image.start + self.base
            raw = references(data, start + header, start, attribute.name, count * REFERENCE_BYTES)
        if raw is not None:
            self._spend(self.image.text_bytes(raw, self.base, path), path)
        return raw is not None

    def _spend(self, nbytes: int, path: str) -> None:
        self._text_bytes += nbytes
        if self._text_bytes > self.budget.header_bytes:
            limit = self.budget.header_bytes
            raise over_budget(self.image.path, f"up to {path!r}, its descriptions have more than {limit} bytes")

    def _count(self, more: int) -> None:
        self._objects += more
        if self._objects > self.budget.tensors:
            raise over_budget(self.image.path, f"it has more than {self.budget.tensors} groups, tensors and attributes")

    def _again(self, found: Any) -> bool:
        import h5py

        address = h5py.h5o.get_info(found).addr
        again = address in self._seen
        self._seen.add(address)
        return again


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")
