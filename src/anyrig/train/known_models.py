"""What a rig knows of the models it has built and run: their engines, their builders, what they were trained before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import keras

from anyrig.topology.plan import DevicePlan
from anyrig.train.identity import source_hash
from anyrig.train.loop import Position
from anyrig.train.precision import policy_in_force, precision_of
from anyrig.train.step.binding import bind_to_predict, bind_to_train, key
from anyrig.train.step.engine import Engine
from anyrig.train.step.mergeable import refuse_unmergeable
from anyrig.train.step.owner import OwnerEngine
from anyrig.train.step.placement import variables_on
from anyrig.train.step.strategy import StrategyEngine, bind_to_strategy, own_steps, runs_whole


class KnownModels:
    """Keeps, for each model of a rig, what has to outlive one call of fit, evaluate or predict."""

    def __init__(
        self,
        devices: Sequence[str],
        plan: Callable[[int | None], DevicePlan],
        plan_whole: Callable[[int, str], DevicePlan],
        seed: int,
    ) -> None:
        self._devices = devices
        self._plan = plan
        self._plan_whole = plan_whole
        self._seed = seed
        self._sources: WeakKeyDictionary[keras.Model, str] = WeakKeyDictionary()
        self._trained: WeakKeyDictionary[keras.Model, Position] = WeakKeyDictionary()
        self._compiled: WeakKeyDictionary[keras.Model, tuple[int, Any]] = WeakKeyDictionary()
        self._in_turn: WeakSet[keras.Model] = WeakSet()

    def built(self, model: keras.Model, build_model: Callable[..., Any]) -> None:
        """Remember the code that built `model`."""
        source = source_hash(build_model)
        if source is not None:
            self._sources[model] = source

    def source(self, model: keras.Model) -> str | None:
        """Return the hash of the code that built `model`, if it is known."""
        return self._sources.get(model)

    def earlier(self, model: keras.Model) -> Position:
        """Return what `model` was trained in earlier calls of fit, so that a new one has other orders and masks."""
        return self._trained.get(model, Position())

    def remember(self, model: keras.Model, earlier: Position, done: Position) -> None:
        """Add a call of fit to what `earlier` returns."""
        self._trained[model] = Position(step=earlier.step + done.step, epoch=earlier.epoch + done.epoch)

    def take_turns(self, model: keras.Model) -> None:
        """Let the devices work one after another on `model` from now on, because they share one memory."""
        self._in_turn.add(model)

    def compiled_as(self, model: keras.Model, describe: Callable[[keras.Model], Any]) -> Any:
        """Return how `model` was compiled, as first seen: callbacks change the learning rate in its optimizer later."""
        known = self._compiled.get(model)
        if known is None or known[0] != id(model.optimizer):
            known = self._compiled[model] = (id(model.optimizer), describe(model))
        return known[1]

    def engine(self, model: keras.Model, sample: Any, virtual_replicas: int | None, *, predict: bool = False) -> Engine:
        """Return the engine that runs `model`, built where it was not yet; `sample` is any batch of its data.

        Without `virtual_replicas` the ones the model was last used with, else one for each device.
        """
        known = self._engines_of(model)
        whole = runs_whole(model) or (predict and "predict_step" in own_steps(model))
        if whole:
            bind_to_strategy(model, sample, "predict_step" if predict else "train_step")
            plan = self._plan_whole(model.distribute_strategy.num_replicas_in_sync, _why_whole(model))
        else:
            if virtual_replicas is None and known:
                virtual_replicas = next(iter(known.values()))[1].plan.virtual_replicas
            plan = replace(self._plan(virtual_replicas), in_turn=model in self._in_turn)
            self._bind(model, sample, plan, predict=predict)
        now = (plan.virtual_replicas, plan.in_turn, *key(model))
        if predict not in known or known[predict][0] != now:
            plan = replace(plan, precision=precision_of(model, plan.precision))
            made = StrategyEngine(plan, model, self._seed) if whole else OwnerEngine(plan, model, self._seed)
            known[predict] = (now, made)
            if isinstance(made, OwnerEngine) and not predict and plan.virtual_replicas > 1:
                refuse_unmergeable(model, made.micro, sample)
        engine = known[predict][1]
        engine.expect(sample)
        engine.read_seeds()
        return engine

    def _engines_of(self, model: keras.Model) -> dict[bool, tuple[Any, Engine]]:
        """Return the engines made for `model`, which the model holds: they end with it."""
        held: dict[KnownModels, dict[bool, tuple[Any, Engine]]] = vars(model).setdefault("_self_anyrig_engines", {})
        return held.setdefault(self, {})

    def _bind(self, model: keras.Model, sample: Any, plan: DevicePlan, *, predict: bool) -> None:
        with variables_on(self._devices), policy_in_force(plan.precision.policy):
            bind_to_predict(model, sample) if predict else bind_to_train(model, sample, plan.virtual_replicas)
        if len(self._devices) > 1:
            model.jit_compile = False  # for Keras's own functions: they cannot be one XLA program over several devices


def _why_whole(model: keras.Model) -> str:
    steps = [step for step in own_steps(model) if step != "predict_step"]
    if steps:
        return f"{type(model).__name__} has its own {steps[0]}"
    return f"{type(model).__name__} was made in the scope of {type(model.distribute_strategy).__name__}"
