"""Which call of Keras's own loop a callback is in, and whether that call is still going on.

A fit that an exception ends tells its callbacks nothing, so what they left behind for it has to be asked after: by the
frame of the call, which is on its thread's stack for as long as it trains. Nothing here trains or saves.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Self

import keras

_BEGINS = keras.callbacks.CallbackList.on_train_begin.__code__


@dataclass(frozen=True, slots=True)
class LoopCall:
    """One call of a loop; the frame is known by its id, so that it and its data can go when it has ended."""

    thread: threading.Thread
    frame: int
    code: CodeType | None

    @classmethod
    def present(cls) -> Self:
        """Return the call in whose `on_train_begin` this is."""
        frame = _loop_frame()
        return cls(threading.current_thread(), id(frame), None if frame is None else frame.f_code)

    @property
    def running(self) -> bool:
        """Whether it goes on; asked in the `on_train_begin` of another call, which may have taken the frame's id."""
        here = self.thread is threading.current_thread()
        if self.code is None or not self.thread.is_alive():  # not called by Keras: a thread trains one at a time
            return self.thread.is_alive() and not here
        frame = _loop_frame() if here else sys._current_frames().get(self.thread.ident or 0)
        if here and frame is not None:
            frame = frame.f_back
        while frame is not None and (id(frame) != self.frame or frame.f_code is not self.code):
            frame = frame.f_back
        return frame is not None


class FirstEpoch(int):
    """The epoch to begin with, for one fit: Keras asks a model whether it has one, and the next fit gets no."""

    _model: Any
    _frame: FrameType | None

    @classmethod
    def of_this_fit(cls, epoch: int, model: Any) -> Self:
        """Return `epoch` for the call in whose `on_train_begin` this is."""
        made = cls(epoch)
        made._model, made._frame = model, _loop_frame()
        return made

    def __bool__(self) -> bool:
        self._model._initial_epoch = None
        return int(self) != 0 and self._frame in (None, sys._getframe(1))


def _loop_frame() -> FrameType | None:
    """Return the frame that has Keras call `on_train_begin`; None if it is somebody else who calls it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _BEGINS:
        frame = frame.f_back
    return None if frame is None else frame.f_back
