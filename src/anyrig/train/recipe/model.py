"""Makes the compiled Keras model that a recipe describes.

The recipe's `compile` wins over what the user's function compiled; one of the two must be there. Keras is imported
inside the functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from anyrig.errors import UsageError
from anyrig.train.recipe.code import call_user, resolve_function
from anyrig.train.recipe.errors import suggestion
from anyrig.train.recipe.schema import CompileRules, Recipe

Made = Callable[[Callable[[], Any]], Any]  # calls it, and keeps the error for later
_BASES = {"optimizers": "Optimizer", "losses": "Loss", "metrics": "Metric"}


def model_builder(recipe: Recipe) -> Callable[[], Any]:
    """Return a function without arguments that builds and compiles the recipe's model; the user's module is run now."""
    function = resolve_function(recipe.model, recipe.base_dir)

    @functools.wraps(function)  # so that the source file of the user's function can be found
    def build() -> Any:
        key = "model_args" if recipe.model_args else "model"
        model = built(call_user(function, recipe.model_args, key=key), recipe.model)
        if recipe.compile is not None:
            compile_model(model, recipe.compile)
        _check_compiled(model, recipe.model)
        return model

    return build


def compile_model(model: Any, rules: CompileRules) -> None:
    """Compile `model` with the optimizer, loss and metrics of the recipe; all that is wrong in them is told at once."""
    wrong: list[UsageError] = []

    def made(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except UsageError as error:
            wrong.append(error)

    optimizer = made(lambda: _make("optimizers", rules.optimizer, "compile.optimizer"))
    loss = made(lambda: _loss(rules.loss, made))
    metrics = made(lambda: _metrics(rules.metrics, "compile.metrics", made))
    weighted = made(lambda: _metrics(rules.weighted_metrics, "compile.weighted_metrics", made))
    if wrong:
        hints = dict.fromkeys(error.hint for error in wrong)
        raise _wrong("\n".join(error.message for error in wrong), "; ".join(hints)) from wrong[0]
    model.compile(
        optimizer=optimizer,
        loss=loss,
        loss_weights=rules.loss_weights,
        metrics=metrics or None,
        weighted_metrics=weighted or None,
        steps_per_execution=rules.steps_per_execution,
        jit_compile=rules.jit_compile or "auto",
        run_eagerly=rules.run_eagerly,
    )


def built(model: Any, spec: str, *, key: str = "model") -> Any:
    """Return what the function `spec`, which `key` names, returned, if it is a Keras model; else raise."""
    import keras

    if not isinstance(model, keras.Model):
        raise UsageError(
            "ANY-RECIPE-011",
            f"{key}: {spec} returned {type(model).__name__}, not a keras.Model",
            hint="end the function with `return model`; the model must come from `keras`, not from `tf_keras`",
        )
    return model


def _check_compiled(model: Any, spec: str) -> None:
    if not model.compiled:
        raise UsageError(
            "ANY-RECIPE-013",
            f"compile: is missing, and {spec} returned a model that is not compiled",
            hint="add e.g. `compile: {optimizer: adam, loss: mse}` to the recipe, or compile in the function",
        )


def _loss(spec: Any, made: Made) -> Any:
    if isinstance(spec, dict) and not _has_arguments(spec, "losses"):
        return {
            output: made(functools.partial(_make, "losses", item, f"compile.loss.{output}"))
            for output, item in spec.items()
        }
    return _make("losses", spec, "compile.loss")


def _metrics(spec: Any, key: str, made: Made) -> Any:
    if isinstance(spec, dict):
        return {output: _metrics(items, f"{key}.{output}", made) for output, items in spec.items()}
    return [item if _keras_resolves(item) else made(functools.partial(_make, "metrics", item, key)) for item in spec]


def _keras_resolves(item: Any) -> bool:
    """Tell whether `compile` takes this name, which then also names the metric in the logs ("accuracy", "mae")."""
    import keras

    if not isinstance(item, str) or item in ("accuracy", "acc", "crossentropy", "ce"):
        return isinstance(item, str)
    try:
        return keras.metrics.get(item) is not None
    except (TypeError, ValueError):
        return False


def _has_arguments(spec: dict[str, Any], module: str) -> bool:
    """Tell {"mean_squared_error": {...}}, a name with arguments, from {"output": {...}}, an output with its entry."""
    (name, *more) = spec
    return not more and isinstance(spec[name], dict) and _normal(name) in _classes(module)


def _make(module: str, spec: Any, key: str) -> Any:
    """Return Keras's object for a name, or for {name: arguments}."""
    name, arguments = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    found = _classes(module).get(_normal(name))
    if found is None:
        return _by_keras(module, name, arguments, key)
    _check_arguments(found, arguments, f"{key}.{name}")
    try:
        return found(**arguments)
    except (TypeError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise _wrong(f"{key}.{name}: {text}", "correct its arguments in the recipe") from error


def _by_keras(module: str, name: str, arguments: dict[str, Any], key: str) -> Any:
    """Return what Keras itself finds for a name that is no class: a short name or a registered function."""
    import keras

    try:
        found = getattr(keras, module).get(name)
    except (TypeError, ValueError) as error:
        known = sorted({cls.__name__ for cls in _classes(module).values()})
        raise _wrong(f"{key}: Keras knows no {name}{suggestion(name, known)}", "correct the name") from error
    if arguments:
        raise _wrong(f"{key}.{name}: {name} is a function and takes no arguments here", "name the class instead")
    return found


def _check_arguments(found: type, arguments: dict[str, Any], key: str) -> None:
    names = [name for name in inspect.signature(found).parameters if name not in ("args", "kwargs")]
    for argument in arguments:
        if argument not in names:
            near = suggestion(argument, names)
            raise _wrong(f"{key}.{argument}: {found.__name__} takes no such argument{near}", "correct the name")


def _classes(module: str) -> dict[str, type]:
    """Return Keras's public classes of `module` ("optimizers", ...), by their names without case and underscores."""
    import keras

    namespace = getattr(keras, module)
    base = getattr(namespace, _BASES[module])
    public = (value for value in vars(namespace).values() if isinstance(value, type) and issubclass(value, base))
    return {_normal(value.__name__): value for value in public if value is not base}


def _normal(name: str) -> str:
    return name.replace("_", "").lower()


def _wrong(message: str, hint: str) -> UsageError:
    return UsageError("ANY-RECIPE-014", message, hint=hint)
