"""The device plan: who does which share of each global batch, and why; pure data and pure functions.

A plan is made before anything is placed. It never touches TensorFlow, so that it can be tested with small integers and
shown by a dry run. `topology/devices.py` finds the devices that it is made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from anyrig.errors import UsageError

PRECISIONS = ("auto", "float32", "mixed_bfloat16", "mixed_float16")
_LABEL_WIDTH = 18
_MEANING = {
    "float32": "the model computes as Keras does by default.",
    "mixed_bfloat16": "layers compute in bfloat16, weights and optimizer stay float32.",
    "mixed_float16": "layers compute in float16, weights and optimizer stay float32, and the loss is scaled.",
}


@dataclass(frozen=True, slots=True)
class Precision:
    """The Keras dtype policy that models are built under, and the sentence that says why."""

    policy: str
    reason: str


DEFAULT_PRECISION = Precision("float32", "Precision float32: the model computes as Keras does by default.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What each device does in every step, with one sentence for each choice.

    `blocks[d]` holds the virtual replicas that device d works through, one after another; an idle device has `()`.
    A step that is not `divided` is the model's own, run whole on each device with its part of the rows. Devices that
    work `in_turn` wait for each other, so that one memory holds the activations of one micro-batch.
    """

    devices: tuple[str, ...]
    virtual_replicas: int
    blocks: tuple[tuple[int, ...], ...]
    precision: Precision
    reasons: tuple[str, ...]
    divided: bool = True
    in_turn: bool = False


def choose_precision(requested: str, global_policy: str, capability: tuple[int, int] | None) -> Precision:
    """Return the precision that `requested` means where Keras's global policy is `global_policy`.

    `capability` is the lowest compute capability of the GPUs in use; None on CPU. Raises UsageError for a precision
    that does not exist.
    """
    if requested not in PRECISIONS:
        raise UsageError(
            "ANY-DEVICE-010",
            f'precision: expected one of {", ".join(PRECISIONS)}, found "{requested}"',
            hint="leave precision at auto",
        )
    policy, why = (requested, "as asked for") if requested != "auto" else _automatic(global_policy, capability)
    return Precision(policy, f"Precision {policy} ({why}): {_MEANING.get(policy, 'a dtype policy of Keras.')}")


def _automatic(global_policy: str, capability: tuple[int, int] | None) -> tuple[str, str]:
    if global_policy != "float32":
        return global_policy, "auto takes Keras's global dtype policy"
    if capability is None or capability < (7, 0):
        return "float32", "auto chooses it on CPUs and older GPUs"
    version = ".".join(map(str, capability))
    policy = "mixed_bfloat16" if capability >= (8, 0) else "mixed_float16"
    return policy, f"auto chooses it on GPUs of compute capability {version}"


def device_plan(
    devices: Sequence[str],
    virtual_replicas: int | None,
    *,
    requested: int | str | None = None,
    precision: Precision = DEFAULT_PRECISION,
) -> DevicePlan:
    """Return the plan for `devices` (TensorFlow logical names) and V virtual replicas (None: one for each device).

    `requested` is what the user asked for, and only changes the words of the reasons.
    Raises UsageError for no devices or V below 1.
    """
    _check(devices, virtual_replicas)
    v = len(devices) if virtual_replicas is None else virtual_replicas
    blocks = _blocks(v, len(devices))
    reasons = (
        _why_devices(devices, requested),
        _why_replicas(v, chosen=virtual_replicas is not None),
        *_why_uneven(v, blocks),
        *_why_idle(v, len(devices)),
    )
    return DevicePlan(
        devices=tuple(devices),
        virtual_replicas=v,
        blocks=blocks,
        precision=precision,
        reasons=reasons,
    )


def undivided_plan(
    devices: Sequence[str],
    used: int,
    why: str,
    *,
    requested: int | str | None = None,
    precision: Precision = DEFAULT_PRECISION,
) -> DevicePlan:
    """Return the plan for a model that `used` of the devices run whole, each with its part of the rows.

    `why` says what about the model makes it so.
    """
    plan = device_plan(devices[:used], used, requested=requested, precision=precision)
    how = "on one device, as Keras runs it" if used == 1 else "as Keras runs it under MirroredStrategy"
    reasons = (
        _why_devices(devices, requested),
        f"{why}: each step runs whole, {how}.",
        "The numbers depend on how many devices take part; a checkpoint carries on on any.",
        *_why_not_mirrored(used, len(devices)),
    )
    return replace(plan, reasons=reasons, divided=False)


def split_rows(rows: int, parts: int) -> tuple[int, ...]:
    """Return the sizes that `numpy.array_split` gives: they differ by at most one, the larger ones come first."""
    size, extra = divmod(rows, parts)
    return tuple(size + (part < extra) for part in range(parts))


def share_memory(plan: DevicePlan) -> bool:
    """Tell whether several devices work at once in one memory: logical CPUs do, GPUs have memory of their own."""
    busy = [device for device, block in zip(plan.devices, plan.blocks, strict=True) if block]
    return not plan.in_turn and sum(short_name(device).startswith("CPU") for device in busy) > 1


def describe(plan: DevicePlan, global_size: int | None = None) -> str:
    """Return `plan` as aligned lines for people; `global_size` (rows of a full batch) adds the rows of each device."""
    lines = ["device plan"]
    lines += [f"  {label:<{_LABEL_WIDTH}} {text}" for label, text in _facts(plan, global_size)]
    lines += ["why"]
    lines += [f"  - {reason}" for reason in (*plan.reasons, plan.precision.reason)]
    return "\n".join(lines)


def short_name(device: str) -> str:
    """Return "CPU:0" for "/device:CPU:0" and for "/job:localhost/replica:0/task:0/device:CPU:0"."""
    return device.rpartition("device:")[2]


def count(number: int, noun: str) -> str:
    """Return "1 device", "2 devices", "1,200 devices"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _check(devices: Sequence[str], virtual_replicas: int | None) -> None:
    if not devices:
        raise UsageError("ANY-DEVICE-008", "no device to train on", hint="give at least one device, e.g. --devices 1")
    if virtual_replicas is not None and virtual_replicas < 1:
        raise UsageError(
            "ANY-DEVICE-009",
            f"batch.virtual_replicas: expected 1 or more, found {virtual_replicas}",
            hint=f"set batch.virtual_replicas to the largest number of devices you want to use, e.g. {len(devices)}",
        )


def _blocks(v: int, devices: int) -> tuple[tuple[int, ...], ...]:
    blocks, start = [], 0
    for size in split_rows(v, devices):
        blocks.append(tuple(range(start, start + size)))
        start += size
    return tuple(blocks)


def _why_devices(devices: Sequence[str], requested: int | str | None) -> str:
    kind = short_name(devices[0]).partition(":")[0]
    found = count(len(devices), kind)
    if requested is not None:
        logical = " (logical CPUs on one processor)" if kind == "CPU" and len(devices) > 1 else ""
        return f"{found}{logical}, because devices={requested} was asked for."
    if kind == "CPU":
        return f"{found}, because no GPU was found."
    return f"{found}: all that were found."


def _why_replicas(v: int, *, chosen: bool) -> str:
    source = "as asked for" if chosen else "one for each device"
    return f"V = {v} ({source}): this run can use at most {count(v, 'device')}, and V does not follow the devices."


def _why_uneven(v: int, blocks: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    busy = [len(block) for block in blocks if block]
    more = v % len(blocks)
    if len(busy) == len(blocks) and more:
        does = "does" if more == 1 else "do"
        yield (
            f"V = {v} is not a multiple of {len(blocks)} devices: {count(more, 'device')} {does} {max(busy)} virtual "
            f"replicas in each step, the others {min(busy)}; a step takes as long as the longest."
        )


def _why_idle(v: int, devices: int) -> Iterator[str]:
    idle = devices - v
    if idle > 0:
        stay = "stays" if idle == 1 else "stay"
        yield f"{count(idle, 'device')} {stay} idle: there are more devices ({devices}) than virtual replicas ({v})."


def _why_not_mirrored(used: int, devices: int) -> Iterator[str]:
    if used < devices:
        yield f"Only {used} of {count(devices, 'device')} used: the model was not built by rig.build on all of them."


def _facts(plan: DevicePlan, global_size: int | None) -> Iterator[tuple[str, str]]:
    yield "devices", f"{len(plan.devices)} ({', '.join(short_name(device) for device in plan.devices)})"
    if plan.divided:
        yield "virtual replicas", f"{plan.virtual_replicas} (at most {count(plan.virtual_replicas, 'device')})"
    else:
        yield "virtual replicas", "none: the model's own step"
    if global_size is not None:
        yield "global batch", count(global_size, "row")
    for device, block in zip(plan.devices, plan.blocks, strict=True):
        yield short_name(device), _share(plan.virtual_replicas, block, global_size, divided=plan.divided)
    yield "precision", plan.precision.policy


def _share(v: int, block: tuple[int, ...], global_size: int | None, *, divided: bool) -> str:
    if not block:
        return "idle"
    text = f"replica {block[0]}" if len(block) == 1 else f"replicas {block[0]} to {block[-1]}"
    if global_size is None:
        return text if divided else "a part of each batch"
    rows = split_rows(global_size, v)
    part = f"{count(sum(rows[replica] for replica in block), 'row')} of each full batch"
    return f"{text}, {part}" if divided else part
