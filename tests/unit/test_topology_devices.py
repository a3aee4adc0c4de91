"""Setting up devices: on this machine in child processes, and GPUs with a stand-in for TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anyrig.errors import AnyrigError, UsageError
from anyrig.testing.processes import run_python
from anyrig.topology import devices, numeric
from anyrig.topology.devices import _set_up, parse_request
from anyrig.topology.numeric import apply_numeric_settings, numeric_settings

# Calls configure with each JSON value on the command line; prints names, or the code of the error.
CALLS = """
import json, sys
from anyrig.errors import AnyrigError
from anyrig.topology.devices import configure
found = []
for argument in map(json.loads, sys.argv[1:]):
    try:
        found.append(list(configure(argument)))
    except AnyrigError as error:
        found.append(error.code)
print(json.dumps(found))
"""


def _calls(*requests: object, **options: Any) -> Any:
    return run_python(CALLS, *map(json.dumps, requests), **options).json()


def test_a_number_of_logical_cpus_for_the_whole_life_of_a_process() -> None:
    three = [f"/device:CPU:{index}" for index in range(3)]
    assert _calls(3, "3", None, 2, "gpu", "cpu") == [
        three,
        three,
        three,
        "ANY-DEVICE-004",
        "ANY-DEVICE-002",
        "ANY-DEVICE-004",
    ]


def test_tensorflow_that_has_started_by_itself_is_taken_or_named() -> None:
    code = "import tensorflow as tf; tf.constant(1)\n" + CALLS
    one = ["/device:CPU:0"]
    assert run_python(code, 2, 1, "null", '"cpu"').json() == ["ANY-DEVICE-004", one, one, one]


@pytest.mark.parametrize("value", [0, -1, "0", "x", "", "1.5", True, 1.5])
def test_what_is_no_device_count(value: Any) -> None:
    with pytest.raises(UsageError, match="expected a positive number, cpu or gpu") as caught:
        parse_request(value)
    assert caught.value.code == "ANY-DEVICE-001"


def test_requests_from_the_command_line_are_numbers_or_kinds() -> None:
    assert [parse_request(value) for value in (None, 4, "4", "CPU", "gpu")] == [None, 4, 4, "cpu", "gpu"]


def test_another_keras_backend_is_named(tmp_path: Path) -> None:
    assert _calls(1, env={"KERAS_BACKEND": "jax"}) == ["ANY-DEVICE-005"]
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert _calls(1, env={"KERAS_HOME": str(tmp_path)}) == ["ANY-DEVICE-005"]


def test_a_missing_tensorflow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr("anyrig.topology.devices.importlib.import_module", missing)
    with pytest.raises(AnyrigError, match="TensorFlow is not installed"):
        devices._import_tensorflow()


@dataclass
class FakeTensorFlow:
    """TensorFlow's device functions on a machine with `gpus` GPUs; `calls` records what was set."""

    gpus: int
    calls: list[Any] = field(default_factory=list)
    visible: dict[str, int] = field(default_factory=dict)
    logical: int = 1

    @property
    def config(self) -> Any:
        return SimpleNamespace(
            list_physical_devices=lambda kind: [f"{kind}:{i}" for i in range(self.gpus if kind == "GPU" else 1)],
            list_logical_devices=self._logical,
            get_logical_device_configuration=lambda cpu: None,
            set_logical_device_configuration=self._set_logical,
            LogicalDeviceConfiguration=object,
            set_visible_devices=lambda shown, kind: self.visible.update({kind: len(shown)}),
            experimental=SimpleNamespace(set_memory_growth=lambda gpu, on: self.calls.append((gpu, on))),
        )

    def _set_logical(self, cpu: object, configurations: list[object]) -> None:
        self.logical = len(configurations)

    def _logical(self, kind: str) -> list[Any]:
        number = self.visible.get("GPU", self.gpus) if kind == "GPU" else self.logical
        return [SimpleNamespace(name=f"/device:{kind}:{index}") for index in range(number)]


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not chosen its devices."""
    monkeypatch.setattr(devices, "_configured", [])


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize(
    ("gpus", "request_", "names"),
    [
        (2, None, ["GPU:0", "GPU:1"]),
        (2, "gpu", ["GPU:0", "GPU:1"]),
        (2, 1, ["GPU:0"]),
        (2, "cpu", ["CPU:0"]),
        (0, None, ["CPU:0"]),
        (0, 4, ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
    ],
)
def test_which_devices_are_used(gpus: int, request_: int | str | None, names: list[str]) -> None:
    fake = FakeTensorFlow(gpus)
    assert _set_up(fake, request_) == tuple(f"/device:{name}" for name in names)
    expected_growth = [(name, True) for name in names if name.startswith("GPU")]
    assert fake.calls == expected_growth


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize(("gpus", "request_", "code"), [(2, 3, "ANY-DEVICE-003"), (0, "gpu", "ANY-DEVICE-002")])
def test_devices_that_are_not_there(gpus: int, request_: int | str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        _set_up(FakeTensorFlow(gpus), request_)
    assert caught.value.code == code


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No TensorFlow loaded, none of its variables set; both as before afterwards."""
    before = dict(os.environ)
    monkeypatch.setattr(numeric, "sys", SimpleNamespace(modules={}))
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_ENABLE_ONEDNN_OPTS"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
def test_numeric_settings_are_read_and_put_in_force() -> None:
    assert numeric_settings()["intra_op_threads"] == len(os.sched_getaffinity(0))
    apply_numeric_settings({"intra_op_threads": 3, "onednn": True})
    assert numeric_settings() == {"intra_op_threads": 3, "onednn": True}
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "3"
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
    apply_numeric_settings({})
    assert numeric_settings() == {"intra_op_threads": 3, "onednn": True}


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("settings", [{"intra_op_threads": 0}, {"intra_op_threads": "2"}, {"onednn": "yes"}])
def test_damaged_numeric_settings_are_named(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        apply_numeric_settings(settings)
    assert caught.value.code == "ANY-DEVICE-011"


def test_tensorflow_uses_what_was_applied_and_refuses_a_later_change() -> None:
    code = """
import json
from anyrig.errors import AnyrigError
from anyrig.topology.numeric import apply_numeric_settings, numeric_settings
chosen = numeric_settings()
apply_numeric_settings({"intra_op_threads": 3})
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port
tf.constant(1)
found = [numeric_settings()["intra_op_threads"], chosen["onednn"] == _pywrap_util_port.IsMklEnabled()]
for settings in ({"intra_op_threads": 3}, {"intra_op_threads": 1}, {"onednn": not chosen["onednn"]}):
    try:
        apply_numeric_settings(settings)
        found.append("kept")
    except AnyrigError as error:
        found.append(error.code)
print(json.dumps(found))
"""
    assert run_python(code).json() == [3, True, "kept", "ANY-DEVICE-007", "ANY-DEVICE-007"]
