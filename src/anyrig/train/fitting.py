"""One call of fit: rig, model, data, callbacks and run directory put together, and the loop run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from anyrig.data.source import Source
from anyrig.data.stream import Stream
from anyrig.errors import UsageError
from anyrig.report.progress import Plain, Progress, display
from anyrig.report.reports import ending
from anyrig.report.say import say
from anyrig.state.callbacks import deciding_callbacks
from anyrig.state.values import assign, to_array
from anyrig.topology.plan import describe
from anyrig.train.batch import Batch
from anyrig.train.callback import Checkpoint
from anyrig.train.checkpoint import CheckpointSettings
from anyrig.train.every import Every
from anyrig.train.identity import identity, without_names
from anyrig.train.known_models import KnownModels
from anyrig.train.limits import Limits
from anyrig.train.loop import Loop, Position
from anyrig.train.nonfinite import NonFinitePolicy
from anyrig.train.outofmemory import OutOfMemoryPolicy, Remake
from anyrig.train.passes import Logs, run_test
from anyrig.train.phases import standing
from anyrig.train.plain_fit import refuse_other_loop
from anyrig.train.saving import Saver
from anyrig.train.session import Session
from anyrig.train.signals import StopRequest
from anyrig.train.step.engine import Engine

if TYPE_CHECKING:
    from anyrig.train.rig import Rig


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """What was asked of fit. `source` makes the training data for a global batch size (None: the data's own)."""

    model: keras.Model
    source: Callable[[int | None], Source]
    validation: Callable[[int | None], Source] | None
    batch: Batch
    default_size: int | None
    epochs: int
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_freq: Any
    verbose: int
    callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.CallbackList
    recipe: Mapping[str, Any] | None
    on_nonfinite: str
    limits: Limits
    phase: str | None
    on_oom: str
    described: Mapping[str, Any]

    @property
    def listed(self) -> list[keras.callbacks.Callback]:
        """The user's callbacks, one by one."""
        given = self.callbacks
        return list(given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given)


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
    refuse_other_loop(progress, "Rig.fit")
    phases = _phases(request, progress)
    if phases is None:
        return _nothing_left(request)
    size, asked_v = _settle_batch(rig, request, progress)
    stream = Stream(request.source(size), request.steps_per_epoch, at_most=request.limits.batches_per_epoch)
    source = stream.source
    engine = known.engine(model, source.sample(), asked_v)
    v = engine.plan.virtual_replicas if engine.plan.divided else None
    tell = _teller(session, verbose=request.verbose)
    validation = request.validation(_asked_size(request, size)) if request.validation else None
    listed = request.listed
    callbacks = _callbacks(request, stream)
    loop = Loop(
        engine=engine,
        model=model,
        stream=stream,
        epochs=request.epochs if request.phase is None else phases[-1]["began"] + request.epochs,
        position=Position(**progress.get("position", {})),
        history={name: list(values) for name, values in progress.get("history", {}).items()},
        last_logs=progress.get("metrics", {}),
        callbacks=callbacks,
        validation_freq=request.validation_freq,
        most_steps=request.limits.max_steps,
        nonfinite=NonFinitePolicy(choice=request.on_nonfinite, tell=tell),
        memory=OutOfMemoryPolicy(
            choice=request.on_oom,
            remake=_remaker(known, model, source),
            forks=list(progress.get("forks", [])),
            tell=tell,
        ),
    )
    if validation is not None:
        loop.validate = _validator(rig.stop, loop, validation, request.validation_steps)
    _place(loop, request, progress, known.earlier(model) if session is None else Position())
    settled = {"global_size": size, "virtual_replicas": v, "precision": rig.precision.policy, "phases": phases}
    saver = Saver(rig.stop, session, every, loop, listed, settled, request.limits)
    saver.loaded, rig.loaded = rig.loaded, None
    if session is not None:
        source.refuse_random_order(stream.number, stream.taken)
        started_v = next((fork["from"] for fork in progress.get("forks", [])), v)
        described = request.recipe or _recipe_of_call(rig, known, request, size, started_v)
        recipe = {**described, **deciding_callbacks(listed)}
        data = {**source.fingerprint(), "validation": validation.fingerprint() if validation else None}
        saver.open(identity(recipe, data, model, known.source(model)), allowed)
        saver.messages += [source.caution] if source.caution else []
    if model.run_eagerly:
        saver.messages.append("run_eagerly: for debugging; equal bytes are promised for traced steps only")
    if request.verbose:
        say("\n".join([describe(engine.plan, size), *saver.messages]))
    try:
        with ending(callbacks.callbacks):
            saver.run()
    finally:  # also what an interrupted call has trained
        known.remember(model, loop.earlier, loop.position)
    return next(c for c in callbacks.callbacks if isinstance(c, keras.callbacks.History))


def _remaker(known: KnownModels, model: keras.Model, source: Source) -> Remake:
    def remake(virtual_replicas: int, *, in_turn: bool) -> Engine:
        if in_turn:
            known.take_turns(model)
        with _metrics_held(model):  # binding a model that runs eagerly evaluates a few rows
            return known.engine(model, source.sample(), virtual_replicas)

    return remake


def _teller(session: Session | None, *, verbose: int) -> Callable[..., None]:
    """Return a function that prints a sentence and records the fields with it as an event."""

    def tell(message: str, *, kind: str, **fields: Any) -> None:
        if verbose:
            say(message)
        if session is not None:
            session.events.emit(kind, message=message, **fields)

    return tell


def checkpoint_among(callbacks: Any) -> tuple[CheckpointSettings | None, Any]:
    """Return the settings of the one `anyrig.Checkpoint` with a run directory, if any, and the other callbacks.

    They come in a `CallbackList` if they were given so.
    """
    given = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else _flat(callbacks)
    found = [c for c in given if _keeps_a_run(c)]
    settings = [c if isinstance(c, CheckpointSettings) else c.settings for c in found]
    if len(settings) > 1 or (settings and settings[0].directory is None):
        problem = "more than one Checkpoint is given" if len(settings) > 1 else "the Checkpoint has no directory"
        raise UsageError("ANY-RUN-012", f"callbacks: {problem}", hint='give one: anyrig.Checkpoint("runs/my-run")')
    others = [c for c in given if not _keeps_a_run(c)]
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks[:] = others
        return next(iter(settings), None), callbacks
    return next(iter(settings), None), others


def _keeps_a_run(callback: Any) -> bool:
    return isinstance(callback, CheckpointSettings) or (isinstance(callback, Checkpoint) and callback.named is None)


def _flat(callbacks: Any) -> list[Any]:
    return [c for c in keras.tree.flatten(callbacks) if c is not None]


def _phases(request: FitRequest, progress: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the phases of the run, that of this fit last; None if this one is over already."""
    stored = list(progress.get("phases", []))
    if request.phase is None and stored and all(phase["name"] is not None for phase in stored):
        raise UsageError(
            "ANY-RUN-033",
            f"this run is made of phases ({', '.join(phase['name'] for phase in stored)}), and a fit without one was "
            "asked for",
            hint="say which phase it is, or give another run directory",
        )
    where = standing(stored, request.phase)
    if where == "is over":
        return None
    if where == "goes on":
        return stored
    if progress and progress["position"]["batch"]:
        raise UsageError(
            "ANY-RUN-033",
            f"phase {request.phase} cannot begin: {stored[-1]['name'] or 'the first fit'} of this run was stopped in "
            "the middle of an epoch",
            hint="finish it first with the fit that it belongs to",
        )
    began = progress["position"]["epoch"] if progress else request.initial_epoch
    return [*stored, {"name": request.phase, "began": began}]


def _nothing_left(request: FitRequest) -> keras.callbacks.History:
    if request.verbose:
        say(f"phase {request.phase} is over: its part of the run is done")
    history = keras.callbacks.History()
    history.set_model(request.model)
    history.on_train_begin()
    return history


def _place(loop: Loop, request: FitRequest, progress: Mapping[str, Any], earlier: Position) -> None:
    """Put a loop where it begins: where the stored run is, else at `initial_epoch`, after what was trained earlier."""
    stored = progress.get("stream")
    if progress:
        position = loop.position
        if not stored or standing(progress.get("phases", []), request.phase) == "begins":
            stored = {"number": position.epoch, "taken": position.batch}
        loop.stream.number, loop.stream.taken = stored["number"], stored["taken"]
        return
    loop.begin_at(request.initial_epoch)
    begun = loop.position
    loop.earlier = Position(step=max(0, earlier.step - begun.step), epoch=max(0, earlier.epoch - begun.epoch))
    loop.stream.number += loop.earlier.epoch


def _asked_size(request: FitRequest, size: int | None) -> int | None:
    """Return the training batch size if it was asked for, which is then that of validation too, as in Keras."""
    return size if (request.batch.global_size or request.batch.per_device) else None


def _settle_batch(rig: Rig, request: FitRequest, progress: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return global size and V: what the run was started with, else what was asked for, else from the devices."""
    stored_v, asked_v = progress.get("virtual_replicas"), request.batch.virtual_replicas
    forked_from = [fork["from"] for fork in progress.get("forks", [])]  # for want of memory; the call stays as it was
    if stored_v is not None and asked_v not in (None, stored_v, *forked_from):
        raise UsageError(
            "ANY-RUN-010",
            f"virtual_replicas: this run was started with {stored_v}, and {asked_v} was asked for; it never "
            "changes within a run",
            hint=f"set it to {stored_v} (batch.virtual_replicas={stored_v}), or fork the run: anyrig fork RUN NEW",
        )
    v = stored_v or rig.plan(asked_v).virtual_replicas
    size = request.batch.global_size or request.default_size
    if request.batch.per_device is not None:
        size = progress.get("global_size") or request.batch.per_device * len(rig.devices)
    return size, v


def _callbacks(request: FitRequest, stream: Stream) -> keras.callbacks.CallbackList:
    if isinstance(request.callbacks, keras.callbacks.CallbackList):
        given = request.callbacks
        if not any(isinstance(c, keras.callbacks.History) for c in given.callbacks):
            given._add_default_callbacks(add_history=True, add_progbar=False)
            given.set_model(request.model)
        return given
    shown = [Progress(display() if request.verbose == 1 else Plain())] if request.verbose else []
    return keras.callbacks.CallbackList(
        [*request.callbacks, *shown],
        add_history=True,
        verbose=request.verbose,
        epochs=request.epochs,
        steps=stream.length(),
        model=request.model,
    )


def _validator(stop: StopRequest, loop: Loop, source: Source, steps: int | None) -> Callable[[], Logs]:
    """Return a function that evaluates the validation data and leaves the training metrics as they were.

    Each epoch has its own pass over the data, so that a shuffled dataset is read in the same order after a resume.
    """

    def validate() -> Logs:
        with _metrics_held(loop.model), closing(Stream(source, steps, number=loop.position.epoch)) as stream:
            return run_test(loop.engine, stream, loop.callbacks, stop)

    return validate


@contextmanager
def _metrics_held(model: keras.Model) -> Iterator[None]:
    held = [(v, to_array(v)) for v in model.metrics_variables]
    try:
        yield
    finally:
        for variable, value in held:
            assign(variable, value)


def _recipe_of_call(
    rig: Rig, known: KnownModels, request: FitRequest, size: int | None, v: int | None
) -> dict[str, Any]:
    """Describe a fit that was called from Python in the words of a recipe."""
    return {
        "batch": {"global_size": size, "virtual_replicas": v},
        "compile": known.compiled_as(request.model, _compile_config),
        "epochs": request.epochs,
        "on_nonfinite": request.on_nonfinite,
        "seed": rig.seed,
        "validation_freq": request.validation_freq,
        **request.described,
    }


def _compile_config(model: keras.Model) -> Any:
    try:
        return without_names(model.get_compile_config())
    except Exception:  # noqa: BLE001 - a user's loss or metric that cannot describe itself; its name has to do
        return {"optimizer": type(model.optimizer).__name__, "loss": str(getattr(model.loss, "__name__", model.loss))}
