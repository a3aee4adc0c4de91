"""One call of fit: rig, model, data, callbacks and run directory put together, and the loop run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from anyrig.data.source import Source
from anyrig.errors import UsageError
from anyrig.state.values import assign, to_array
from anyrig.topology.plan import describe
from anyrig.train.batch import Batch
from anyrig.train.checkpoint import Checkpoint
from anyrig.train.every import Every
from anyrig.train.identity import identity, without_names
from anyrig.train.known_models import KnownModels
from anyrig.train.loop import Logs, Loop, Position, run_test
from anyrig.train.saving import Saver
from anyrig.train.session import Session
from anyrig.train.signals import StopRequest
from anyrig.train.step.owner import OwnerEngine

if TYPE_CHECKING:
    from anyrig.train.rig import Rig


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """What was asked of fit. `source` makes the training data for a global batch size (None: the data's own)."""

    model: keras.Model
    source: Callable[[int | None], Source]
    validation: Callable[[int | None], Source] | None
    validation_freq: Any
    batch: Batch
    default_size: int | None
    epochs: int
    verbose: int
    callbacks: Sequence[keras.callbacks.Callback]
    recipe: Mapping[str, Any] | None
    shuffle: bool


def run_fit(
    rig: Rig,
    known: KnownModels,
    request: FitRequest,
    session: Session | None,
    every: Every | None,
    allowed: Collection[str],
) -> keras.callbacks.History:
    """Do the fit, carrying the session's run on where it has one; return Keras's History of this call."""
    model, progress = request.model, session.progress if session else {}
    size, v = _settle_batch(rig, request, progress)
    source = request.source(size)
    engine = known.engine(model, source.sample(), v)
    validation = request.validation(size) if request.validation else None
    callbacks = _callbacks(request, model, source)
    loop = Loop(
        engine=engine,
        model=model,
        source=source,
        epochs=request.epochs,
        position=Position(**progress.get("position", {})),
        history={name: list(values) for name, values in progress.get("history", {}).items()},
        last_logs=progress.get("metrics", {}),
        callbacks=callbacks,
        validate=None if validation is None else _validator(rig.stop, model, engine, validation, callbacks),
        validation_freq=request.validation_freq,
    )
    saver = Saver(rig.stop, session, every, loop, request.callbacks, {"global_size": size, "virtual_replicas": v})
    if session is not None:
        source.refuse_random_order(loop.position.epoch)
        recipe = request.recipe or _recipe_of_call(rig, known, request, size, v)
        data = {**source.fingerprint(), "validation": validation.fingerprint() if validation else None}
        saver.open(identity(recipe, data, model, known.source(model)), allowed)
    if request.verbose:
        print(describe(engine.plan, size), flush=True)
        print(*saver.messages, sep="\n", end="\n" if saver.messages else "", flush=True)
    loop.earlier = known.earlier(model) if session is None else Position()
    saver.run()
    known.remember(model, loop.earlier, loop.position)
    return next(c for c in callbacks.callbacks if isinstance(c, keras.callbacks.History))


def checkpoint_among(callbacks: Sequence[Any] | None) -> tuple[Checkpoint | None, list[Any]]:
    """Return the one `anyrig.Checkpoint` of a list of callbacks, if any, and the other callbacks."""
    found = [c for c in callbacks or () if isinstance(c, Checkpoint)]
    if len(found) > 1 or (found and found[0].directory is None):
        problem = "more than one Checkpoint is given" if len(found) > 1 else "the Checkpoint has no directory"
        raise UsageError("ANY-RUN-012", f"callbacks: {problem}", hint='give one: anyrig.Checkpoint("runs/my-run")')
    return (found[0] if found else None), [c for c in callbacks or () if not isinstance(c, Checkpoint)]


def _settle_batch(rig: Rig, request: FitRequest, progress: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return global size and V: what the run was started with, else what was asked for, else from the devices."""
    stored_v, asked_v = progress.get("virtual_replicas"), request.batch.virtual_replicas
    if stored_v is not None and asked_v not in (None, stored_v):
        raise UsageError(
            "ANY-RUN-010",
            f"virtual_replicas: this run was started with {stored_v}, and {asked_v} was asked for; it never "
            "changes within a run",
            hint=f"set virtual_replicas to {stored_v}, or start another run directory",
        )
    v = stored_v or rig.plan(asked_v).virtual_replicas
    size = request.batch.global_size or request.default_size
    if request.batch.per_device is not None:
        size = progress.get("global_size") or request.batch.per_device * len(rig.devices)
    return size, v


def _callbacks(request: FitRequest, model: keras.Model, source: Source) -> keras.callbacks.CallbackList:
    return keras.callbacks.CallbackList(
        list(request.callbacks),
        add_history=True,
        add_progbar=request.verbose != 0,
        verbose=request.verbose,
        epochs=request.epochs,
        steps=source.batches_per_epoch(),
        model=model,
    )


def _validator(
    stop: StopRequest, model: keras.Model, engine: OwnerEngine, source: Source, callbacks: keras.callbacks.CallbackList
) -> Callable[[], Logs]:
    """Return a function that evaluates the validation data and leaves the training metrics as they were."""

    def validate() -> Logs:
        held = [(v, to_array(v)) for v in model.metrics_variables]
        try:
            return run_test(engine, source, callbacks, stop)
        finally:
            for variable, value in held:
                assign(variable, value)

    return validate


def _recipe_of_call(rig: Rig, known: KnownModels, request: FitRequest, size: int | None, v: int) -> dict[str, Any]:
    """Describe a fit that was called from Python in the words of a recipe."""
    return {
        "batch": {"global_size": size, "virtual_replicas": v},
        "compile": known.compiled_as(request.model, _compile_config),
        "epochs": request.epochs,
        "precision": rig.precision,
        "seed": rig.seed,
        "shuffle": request.shuffle,
        "validation_freq": request.validation_freq,
    }


def _compile_config(model: keras.Model) -> Any:
    try:
        return without_names(model.get_compile_config())
    except Exception:  # noqa: BLE001 - a user's loss or metric that cannot describe itself; its name has to do
        return {"optimizer": type(model.optimizer).__name__, "loss": str(getattr(model.loss, "__name__", model.loss))}
