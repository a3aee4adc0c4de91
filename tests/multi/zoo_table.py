"""All cases of the table, in the order in which the documents list them."""

from __future__ import annotations

from tests.multi import zoo_layers, zoo_loop, zoo_losses, zoo_models, zoo_optimizers, zoo_preprocessing
from tests.multi.zoo import CASES

__all__ = ["CASES", "MODULES"]

MODULES = (zoo_models, zoo_layers, zoo_preprocessing, zoo_losses, zoo_optimizers, zoo_loop)
