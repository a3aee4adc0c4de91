"""What a run was made with: versions, processor and TensorFlow settings, as JSON that may be shared.

Reads package metadata and `/proc/cpuinfo`; it never imports TensorFlow or Keras, and never records host names, user
names or paths.
"""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("anyrig", "tensorflow", "keras", "numpy")
# Distributions that install the same `tensorflow` package; the first one found counts.
_ALIASES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel", "tensorflow-macos")}
# Instruction sets that change which kernels run, and with them the last bits of the results.
_FLAGS = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "sve", "asimd")
_FLAG_PREFIXES = ("avx512", "amx")
_VARIABLES = (
    "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_THREAD_MODE",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_USE_LEGACY_KERAS",
    "TF_XLA_FLAGS",
    "NVIDIA_TF32_OVERRIDE",
)


def environment() -> dict[str, object]:
    """Return versions (None: not installed), platform, processor, and the TensorFlow variables that are set."""
    return {
        **{package: version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_flags": list(cpu_flags()),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


@functools.cache
def version(package: str) -> str | None:
    """Return the installed version of `package`, or None; asked once, since that takes milliseconds."""
    for name in _ALIASES.get(package, (package,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def cpu_model() -> str | None:
    """Return the processor's name, or None where the system does not tell."""
    return _cpuinfo().get("model name") or platform.processor() or None


def cpu_flags() -> tuple[str, ...]:
    """Return the instruction sets of this processor that change numerical kernels, sorted."""
    info = _cpuinfo()
    flags = (info.get("flags") or info.get("Features") or "").split()
    return tuple(sorted({flag for flag in flags if flag in _FLAGS or flag.startswith(_FLAG_PREFIXES)}))


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
