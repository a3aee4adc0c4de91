"""Finds and sets up the devices of this process, before TensorFlow starts.

A process holds one device count for its whole life, because TensorFlow fixes its devices when it starts. TensorFlow is
imported inside the functions only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError, UsageError
from anyrig.topology.numeric import THREADS, apply_numeric_settings
from anyrig.topology.plan import count

_KINDS = ("cpu", "gpu")
_configured: list[tuple[str, ...]] = []  # empty, or the one answer that this process has given


def configure(devices: int | str | None = None, *, intra_op_threads: int | None = None) -> tuple[str, ...]:
    """Set up the devices of this process and return their TensorFlow names ("/device:CPU:0").

    `devices`: None for all GPUs or else one CPU; "cpu"; "gpu" for all GPUs; a number for that many GPUs, or for logical
    CPUs on a machine without GPU. A second call must ask for the same. `intra_op_threads` sets TensorFlow's threads for
    one operation. Raises UsageError when the devices are not there or TensorFlow has already started with others.
    """
    request = parse_request(devices)
    _check_backend()
    apply_numeric_settings({THREADS: intra_op_threads})
    names = _set_up(_import_tensorflow(), request)
    if not _configured:
        _configured.append(names)
    return names


def parse_request(devices: int | str | None) -> int | str | None:
    """Return a positive number, "cpu", "gpu" or None; raise UsageError for anything else."""
    text = str(devices).strip().lower()
    if devices is None or (isinstance(devices, str) and text in _KINDS):
        return None if devices is None else text
    try:
        number = 0 if isinstance(devices, bool) else int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(
            "ANY-DEVICE-001",
            f"devices: expected a positive number, cpu or gpu, found {devices}",
            hint="type e.g. --devices 1, or leave it out to use all GPUs, or else one CPU",
        )
    return number


def _set_up(tf: Any, request: int | str | None) -> tuple[str, ...]:
    gpus = tf.config.list_physical_devices("GPU")
    if request == "gpu" and not gpus:
        raise UsageError(
            "ANY-DEVICE-002",
            "devices: gpu was asked for, and TensorFlow finds no GPU on this machine",
            hint="type --devices cpu; if there is a GPU, install tensorflow[and-cuda] and look at `nvidia-smi`",
        )
    if gpus and request != "cpu":
        return _use_gpus(tf, gpus, request if isinstance(request, int) else len(gpus))
    return _use_cpus(tf, gpus, request)


def _use_gpus(tf: Any, gpus: list[Any], number: int) -> tuple[str, ...]:
    if number > len(gpus):
        raise UsageError(
            "ANY-DEVICE-003",
            f"devices: {count(number, 'GPU')} asked for, {len(gpus)} found",
            hint=f"type --devices {len(gpus)}, or --devices cpu",
        )
    try:
        for gpu in gpus[:number]:
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.config.set_visible_devices(gpus[:number], "GPU")
    except RuntimeError:
        pass  # TensorFlow has started: what it has now decides, and is compared below
    return _compare([device.name for device in tf.config.list_logical_devices("GPU")], number)


def _use_cpus(tf: Any, gpus: list[Any], request: int | str | None) -> tuple[str, ...]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    already = tf.config.get_logical_device_configuration(cpu)
    number = request if isinstance(request, int) else len(already or ()) if request is None and already else 1
    try:
        if gpus:
            tf.config.set_visible_devices([], "GPU")
        if number != len(already or (cpu,)):
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
    except RuntimeError:
        pass  # as above
    return _compare([device.name for device in tf.config.list_logical_devices("CPU")], number)


def _compare(found: list[str], number: int) -> tuple[str, ...]:
    """Return `found` if it is what was asked for now and, in this process, before."""
    names = tuple(found)
    if len(names) == number and (not _configured or _configured[0] == names):
        return names
    held = _configured[0] if _configured else names
    raise UsageError(
        "ANY-DEVICE-004",
        f"devices: {number} asked for, but TensorFlow has already started with {len(held)} in this process, and a "
        "process holds one device count for its whole life",
        hint=f"start another process for {count(number, 'device')}; in a script or notebook, create the Rig or Run "
        "before anything else uses TensorFlow",
    )


def _import_tensorflow() -> Any:
    try:
        return importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise AnyrigError(
            "ANY-DEVICE-006",
            "TensorFlow is not installed, and training needs it",
            hint="type: pip install 'anyrig[tensorflow]' (with GPUs) or pip install 'anyrig[tensorflow-cpu]'",
        ) from error


def _check_backend() -> None:
    backend = _backend()
    if backend != "tensorflow":
        raise UsageError(
            "ANY-DEVICE-005",
            f"Keras is set to the {backend} backend, and anyrig trains with tensorflow",
            hint="set KERAS_BACKEND=tensorflow and start again",
        )


def _backend() -> str:
    """Return Keras's backend: of the loaded Keras, else from the environment, else from Keras's own settings file."""
    if "keras" in sys.modules:
        return str(sys.modules["keras"].config.backend())
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        settings = json.loads((home / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "tensorflow"
    return str(settings.get("backend", "tensorflow")) if isinstance(settings, dict) else "tensorflow"
