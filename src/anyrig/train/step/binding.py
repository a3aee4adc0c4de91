"""Make a model ready for virtual replicas, or say by name what in it cannot be divided."""

from __future__ import annotations

import re
from typing import Any

import keras
import tensorflow as tf

from anyrig.errors import AnyrigError, UsageError
from anyrig.train.step.losses import declared_rule


def bind_to_train(model: keras.Model, sample: Any, virtual_replicas: int) -> None:
    """Build what training or evaluation needs and is not built yet; `sample` is a batch (x, y, sample_weight) or specs.

    Raises UsageError by name for what V virtual replicas cannot divide.
    """
    require_compiled(model)
    _refuse_stateful(model)
    sample = keras.tree.map_structure(_text_as_tensor, sample)
    try:
        _build_by_calling(model, sample) if model.run_eagerly else model._symbolic_build(data_batch=sample)
    except AnyrigError:
        raise
    except Exception as error:  # the model's own code, or Keras on shapes that do not fit
        raise _misfit(model, sample, error) from error
    if virtual_replicas > 1:
        _refuse_undivided(model)


def require_compiled(model: keras.Model) -> None:
    """Raise UsageError for a model that is not compiled."""
    if not model.compiled:
        raise UsageError(
            "ANY-TRAIN-007",
            f"the model {model.name!r} is not compiled",
            hint="call model.compile(optimizer, loss) in the model function",
        )


def bind_to_predict(model: keras.Model, sample: Any) -> None:
    """Build the model's variables if they are not there yet; the model need not be compiled."""
    _refuse_stateful(model)
    if not all(layer.built for layer in model._flatten_layers()):
        x = keras.tree.map_structure(_text_as_tensor, sample[0])
        specs = keras.tree.map_structure(
            lambda leaf: keras.KerasTensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype)), x
        )
        keras.src.backend.compute_output_spec(model, specs)


def _build_by_calling(model: keras.Model, sample: Any) -> None:
    """Build what is not built by one evaluation, since code run eagerly may need values (`tensor.numpy()`)."""
    x, y, sample_weight = keras.tree.map_structure(_values, sample)
    model.test_on_batch(x, y, sample_weight)
    model.reset_metrics()
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _values(leaf: Any) -> Any:
    """Return zeros for a specification, one for each size that is open; arrays as they are."""
    if not isinstance(leaf, tf.TensorSpec):
        return leaf
    return tf.zeros([1 if size is None else size for size in leaf.shape], leaf.dtype)


def _text_as_tensor(leaf: Any) -> Any:
    """Return NumPy's text as TensorFlow's, whose dtype Keras knows; anything else as it is."""
    return tf.convert_to_tensor(leaf) if getattr(getattr(leaf, "dtype", None), "kind", "") in ("O", "S", "U") else leaf


def _misfit(model: keras.Model, sample: Any, error: Exception) -> UsageError:
    lines = re.sub(r"\x1b\[\d+m", "", str(error).strip().strip("'")).splitlines()
    text = next((line for line in lines if line and not line.startswith("Exception encountered")), "")
    parts = [f"  {label}: {_shapes(part)}" for label, part in zip(("x", "y", "sample_weight"), sample, strict=True)]
    model_lines = [f"  model {kind}: {_shapes(getattr(model, kind, None) or None)}" for kind in ("inputs", "outputs")]
    labels = keras.tree.flatten(sample[1])
    integers = any(label is not None and keras.backend.is_int_dtype(label.dtype) for label in labels)
    return UsageError(
        "ANY-TRAIN-012",
        "\n".join(
            ["the model, its loss and the data do not fit together", *parts, *model_lines, f"  Keras says: {text}"]
        ),
        hint="compare the shapes; --debug shows where in the model"
        + ("; integer labels need a loss such as sparse_categorical_crossentropy" if integers else ""),
    )


def _shapes(part: Any) -> str:
    """Return shapes and dtypes in the structure of `part`, the rows left open."""
    if part is None:
        return "none"
    described = keras.tree.map_structure(
        lambda leaf: f"{getattr(leaf.dtype, 'name', leaf.dtype)} ({', '.join(['rows', *map(str, leaf.shape[1:])])})",
        part,
    )
    return str(described).replace("'", "").replace('"', "")


def key(model: keras.Model) -> tuple[Any, ...]:
    """Return what changes when the traces of a model no longer hold: compiled anew, built further, (un)frozen."""
    compiled = [getattr(model, name, None) for name in ("optimizer", "_compile_loss", "_compile_metrics")]
    variables = [*model.trainable_variables, None, *model.non_trainable_variables, *model.metrics_variables]
    return tuple(map(id, [*compiled, *variables]))


def _refuse_stateful(model: keras.Model) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) is True:
            raise UsageError(
                "ANY-TRAIN-005",
                f"{type(layer).__name__} {layer.name!r} has stateful=True: row i of a batch goes on where row i of the "
                "batch before ended, which batches of any number of rows, divided and resumed, cannot keep",
                hint="set stateful=False and give whole sequences",
            )


def _refuse_undivided(model: keras.Model) -> None:
    rule = declared_rule(model)
    if type(model).compute_loss is not keras.Model.compute_loss and rule is None:
        raise UsageError(
            "ANY-TRAIN-009",
            f"{type(model).__name__} has its own compute_loss, and what it averages over is not known",
            hint="declare it: anyrig.loss_rule(model, 'mean'), or 'sum'; or use virtual_replicas=1",
        )
    if rule == "sum" and any(variable.regularizer is not None for variable in model.trainable_variables):
        raise UsageError(
            "ANY-TRAIN-009",
            f"{type(model).__name__} is declared a sum over rows, but its weight regularizers are not",
            hint="return a mean over rows and declare that, or use virtual_replicas=1",
        )
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False) is True:
            raise UsageError(
                "ANY-TRAIN-010",
                f"{type(layer).__name__} {layer.name!r} has synchronized=True, but each virtual replica has "
                "statistics of its own",
                hint="set synchronized=False (the moving averages are merged after each step), or virtual_replicas=1",
            )
