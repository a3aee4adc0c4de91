"""The catalogue of what may keep a file from loading, the heaviest first.

docs/explain.md has an entry for each, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """What may be wrong. `stops` if nothing is loaded because of it; else it is only told."""

    title: str
    likely: str
    stops: bool = True


CAUSES: Mapping[str, Cause] = {
    "no-weights": Cause(
        "The file has no weights",
        "it holds an optimizer's state or counters only: the weights are in another file, saved beside it",
    ),
    "another-model": Cause(
        "It is another model",
        "hardly a shape is the same on both sides: the file is of another architecture, or of another size of it",
    ),
    "incomplete": Cause(
        "A part of the file is not there",
        "not all files of the checkpoint were copied, or its writer was stopped: copy it again, whole",
    ),
    "unknown-type": Cause(
        "Numbers are of a type that the file does not name",
        "Keras tells bfloat16 only in a whole .h5 model: anyrig convert FILE.h5 FILE.keras, and fill from that",
    ),
    "fused": Cause(
        "Kernels are joined on one side only",
        "attention keeps query, key and value apart or as one, a recurrent layer its gates: the order is not written",
    ),
    "bn-folded": Cause(
        "A BatchNormalization is folded into the layer before it",
        "it was exported for inference: scale and mean are in the kernel and bias, and cannot be taken out again",
    ),
    "head-size": Cause(
        "A layer has another number of outputs",
        "the model was trained for another number of classes: its last layer is made anew for yours",
    ),
    "vocabulary-size": Cause(
        "An embedding has another number of rows",
        "it was trained with another vocabulary: rows have to be matched word by word, or learned anew",
    ),
    "gru-reset-after": Cause(
        "A GRU was made with the other reset_after",
        "its default was changed from False to True in TensorFlow 2: build yours with the value that the file has",
    ),
    "other-shape": Cause(
        "A weight has another shape",
        "the layer was built for another number of inputs or units, or its axes are in an order that is not known",
    ),
    "order-alone": Cause(
        "Layers of the same shape, and names that do not tell them apart",
        "their names come from counters, so only the order in which they were made would decide, and it may be another",
    ),
    "renamed": Cause(
        "A layer was renamed, or is another one",
        "name and place differ by somebody's choice, the shape is the same: you know whether it is the same layer",
    ),
    "turned-or-not": Cause(
        "A square kernel may be turned or not",
        "other libraries keep (out, in), Keras (in, out), and a square does not show which it is",
    ),
    "missing": Cause(
        "The model has weights that the file does not hold",
        "the model has grown since, or a part of it was saved elsewhere; or the file is not complete",
    ),
    "extra": Cause(
        "The file holds weights that the model does not have",
        "the file is of a larger model (with a head, an auxiliary output, a second tower), of which yours is a part",
    ),
    "names": Cause("Names differ, and are clear", "each pair has only one possible counterpart", stops=False),
    "layout": Cause(
        "Kernels are laid out otherwise",
        "another library or an older Keras wrote them; turned while loading",
        stops=False,
    ),
    "cudnn": Cause(
        "A recurrent layer is CuDNN's", "it was trained as CuDNNGRU or CuDNNLSTM; relaid while loading", stops=False
    ),
    "partitions": Cause(
        "Variables are cut into parts",
        "sharded in training, or gates that Keras 1 kept apart; joined in loading",
        stops=False,
    ),
    "other-type": Cause("Numbers are of another type", "another precision; cast while loading", stops=False),
    "averages": Cause(
        "The file also holds averages of weights",
        "shadows of ExponentialMovingAverage, often the better weights; the plain ones are loaded unless rules say so",
        stops=False,
    ),
    "optimizer": Cause(
        "The file also holds the state of training",
        "it was saved to be trained further; a compiled model of yours gets it too, where the file tells what is whose",
        stops=False,
    ),
    "suffix": Cause(
        "The file is not what its name says", "somebody renamed it; other programs go by the suffix", stops=False
    ),
}
