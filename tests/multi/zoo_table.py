"""All cases of the table, in the order in which the documents list them, and those that are held against Keras."""

from __future__ import annotations

from typing import Any

from anyrig.testing.same_run import RunCase
from tests.multi import (
    zoo,
    zoo_layers,
    zoo_loop,
    zoo_losses,
    zoo_models,
    zoo_optimizers,
    zoo_preprocessing,
    zoo_refused,
)

MODULES = (zoo_models, zoo_layers, zoo_preprocessing, zoo_losses, zoo_optimizers, zoo_loop, zoo_refused)
CASES = {
    name: entry for module in MODULES for name, entry in zoo.CASES.items() if entry.make.__module__ == module.__name__
}
COMPARABLE = [name for name, entry in CASES.items() if not entry.refused]
STEPS = 6  # two epochs, for most


def run_case(run: str) -> RunCase:
    """Return a run, "case:V", in the form in which `anyrig.testing` trains it on several device counts."""
    name, _, replicas = run.partition(":")
    precision = CASES[name].make().precision
    pair = f"{__name__}:parts"
    return RunCase(
        function=pair, arguments={"name": name}, virtual_replicas=int(replicas), steps=STEPS, precision=precision
    )


def parts(name: str) -> Any:
    """Return the model function of a case, its data (x, y, sample_weight) and the further arguments of fit."""
    case = CASES[name].make()
    given = case.fit()
    return case.build, tuple(given.pop(key, None) for key in ("x", "y", "sample_weight")), given
