"""A full disk, as the system itself reports it: a limit on the size of files stands in for it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.store.commit import newest_sound
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.testing.faults import in_child


def save(root: Path, step: int, size: int) -> None:
    write_checkpoint(root, step, [StoredTensor(name="model/large", array=np.zeros(size, np.uint8))], progress={})


@pytest.mark.parametrize("limit", [0, 1, 100, 300, 1000, 2500])
def test_B156_a_full_disk_is_a_named_error_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    save(tmp_path, 1, 10)
    reading, writing = os.pipe()

    def starved() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            save(tmp_path, 2, 4000)
        except AnyrigError as error:
            os.write(writing, str(error).encode())
            raise

    assert in_child(starved) == 1
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert "Step 2 was not saved" in text
    assert "File too large" in text
    assert "free some space" in text
    assert os.listdir(tmp_path) == ["step-000000001"]
    found, _ = newest_sound(tmp_path)
    assert found is not None
    assert found.step == 1
