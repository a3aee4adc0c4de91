"""How a stored tensor that belongs to a variable can be given the variable's layout, if exactly one way is known.

Where two ways would fit (a square kernel that may be transposed or not), both are returned and nobody chooses here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anyrig.mapping.canonical import Parts
from anyrig.mapping.layout import CONV_FROM_CHANNELS_FIRST, Step
from anyrig.mapping.result import Stored
from anyrig.mapping.sides import with_shape
from anyrig.state.wanted import Wanted

Shape = tuple[int, ...]
AS_IT_IS: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Fitted:
    """`ways` to bring `stored` into the wanted shape: none, one, or several that shapes cannot tell apart."""

    stored: Stored
    ways: tuple[tuple[Step, ...], ...]
    why: str = ""


def fitted(stored: Stored, wanted: Wanted) -> Fitted:
    """Return how a tensor can fill a variable that it belongs to by its name."""
    whole = with_shape(stored, wanted.shape)
    if stored.name.rpartition(".")[2] == "weight" or stored.name.endswith("/weight"):
        return Fitted(whole, *_channels_first(whole.shape, wanted))
    if whole.shape == wanted.shape:
        return Fitted(whole, (AS_IT_IS,))
    return Fitted(whole, *_other_shape(whole.shape, wanted.shape))


def _channels_first(shape: Shape, wanted: Wanted) -> tuple[tuple[tuple[Step, ...], ...], str]:
    """A `weight` as libraries with (out, in) kernels call it: turned, unless that does not fit and the plain one does.

    Vectors and embeddings have one layout only.
    """
    if len(shape) < 2 or wanted.leaf.rpartition("/")[2].startswith("embedding"):
        return ((AS_IT_IS,), "") if shape == wanted.shape else _other_shape(shape, wanted.shape)
    ways = _turned(shape, wanted.shape)
    if shape == wanted.shape:
        ways = (*ways, AS_IT_IS)
    return ways, "a kernel called weight, whose axes are (out, in, ...) elsewhere" if ways else ""


def _turned(shape: Shape, wanted: Shape) -> tuple[tuple[Step, ...], ...]:
    if len(shape) == 2:
        return ((Step("transpose"),),) if shape[::-1] == wanted else ()
    axes = CONV_FROM_CHANNELS_FIRST.get(len(shape))
    fits = axes is not None and tuple(shape[axis] for axis in axes) == wanted
    return ((Step("conv_from_channels_first"),),) if fits else ()


def _other_shape(shape: Shape, wanted: Shape) -> tuple[tuple[tuple[Step, ...], ...], str]:
    if {shape, wanted} == {(), (1,)}:
        return ((Step("reshape", wanted),),), "a scalar, which one side keeps as [1]"
    turned = _turned(shape, wanted)
    if turned:
        return turned, "the axes are turned: (out, in) is stored, (in, out) is wanted"
    return (), ""


def cudnn_steps(stored: Mapping[Parts, Stored], wanted: Mapping[Parts, Wanted]) -> dict[Parts, tuple[Step, ...]] | None:
    """Return the steps for each variable of a recurrent layer whose bias shows that it was a CuDNNGRU or CuDNNLSTM.

    Their kernels have the same shapes as those of GRU and LSTM, and other layouts (B027).
    """
    leaves = {leaf[-1]: leaf for leaf in wanted}
    if leaves.keys() != {"kernel", "recurrent_kernel", "bias"} or stored.keys() != wanted.keys():
        return None
    units = wanted[leaves["recurrent_kernel"]].shape[0]
    have, want = stored[leaves["bias"]].shape, wanted[leaves["bias"]].shape
    if have == (6 * units,) and want == (2, 3 * units):
        gates, bias = 3, Step("reshape", want)
    elif have == (8 * units,) and want == (4 * units,):
        gates, bias = 4, Step("add_halves")
    else:
        return None
    return {
        leaves["kernel"]: (Step("cudnn_input_kernel", gates),),
        leaves["recurrent_kernel"]: (Step("cudnn_recurrent_kernel", gates),),
        leaves["bias"]: (bias,),
    }


def cause_of_misfit(stored: Stored, wanted: Wanted) -> tuple[str, str]:
    """Return the entry of the catalogue and a sentence for a tensor that does not fit its variable."""
    have, want = stored.shape, wanted.shape
    leaf = wanted.leaf.rpartition("/")[2]
    if leaf == "bias" and {len(have), len(want)} == {1, 2} and have[-1:] == want[-1:]:
        after = len(want) == 2
        return "gru-reset-after", (
            f"the bias is {list(have)} and {list(want)} is wanted: the GRU that was saved has "
            f"reset_after={not after}, the one of the model has reset_after={after}"
        )
    if leaf.startswith("embedding") and len(have) == len(want) == 2 and have[1] == want[1]:
        return "vocabulary-size", f"the embedding has {have[0]} rows and {want[0]} are wanted: another vocabulary"
    if len(have) == len(want) and have[:-1] == want[:-1]:
        return "head-size", f"the layer makes {have[-1]} outputs and {want[-1]} are wanted"
    return "other-shape", f"the shape is {list(have)} and {list(want)} is wanted"
