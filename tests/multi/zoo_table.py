"""All cases of the table, in the order in which the documents list them, and those that are held against Keras."""

from __future__ import annotations

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
