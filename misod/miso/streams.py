"""The codec for rows that come and go: those decoded together share one state, copied only where their set changes."""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np

from misod.miso.mimi import Mimi, concat_states, take_rows
from misod.miso.mimi_numpy import NumpyDecoder
from misod.miso.seanet import State


class Stream:
    """One row's place in a state: `row` of `state`."""

    def __init__(self, state: State, row: int = 0):
        self.state, self.row = state, row

    def narrow(self) -> None:
        """Hold no more than the own row: those it was decoded beside went on without it."""
        self.state, self.row = take_rows(self.state, [self.row]), 0
        mx.eval(self.state)


class Streams:
    """`codec`: what decodes here; `of` chooses."""

    def __init__(self, codec: Mimi | NumpyDecoder):
        self._codec = codec
        self._in_numpy = isinstance(codec, NumpyDecoder)
        self._thread = ThreadPoolExecutor(1, "codec") if self._in_numpy else None
        self._stream = None if self._in_numpy else mx.new_stream(mx.default_device())
        self._last: list[weakref.ref[Stream]] = []  # of the last step
        self._left: list[weakref.ref[Stream]] = []  # those that took no part in it, and did in the one before

    @classmethod
    def of(cls, mimi: Mimi) -> "Streams":
        return cls(NumpyDecoder(mimi) if mx.default_device() == mx.cpu else mimi)

    def open(self) -> Stream:
        """Before its first frame."""
        return Stream(self._codec.new_state())

    def begin(
        self, codes: np.ndarray, streams: Sequence[Stream], there: np.ndarray | None = None
    ) -> Callable[[], tuple[np.ndarray, list[Stream]]]:
        """step, beside what is computed until its result is asked for."""
        if self._thread:
            return self._thread.submit(self.step, codes, streams, there).result
        with mx.stream(self._stream):
            pcm, following = self.step(codes, streams, there)
        return lambda: (np.array(pcm), following)

    def step(
        self, codes: np.ndarray, streams: Sequence[Stream], there: np.ndarray | None = None
    ) -> tuple[mx.array | np.ndarray, list[Stream]]:
        """See Mimi.step; the next state's places, in order. `streams` stay as they were.

        With MLX in flight: nothing is waited for.
        """
        before = joined(streams)
        if self._in_numpy:
            pcm, state = self._codec.step(codes, before, there)
        else:
            pcm, state = self._codec.step(mx.array(codes), before, None if there is None else mx.array(there))
            mx.async_eval(pcm, state)
        following = [Stream(state, row) for row in range(len(streams))]
        for left in (ref() for ref in self._left):
            if left and left not in streams:
                left.narrow()
        self._left, self._last = [ref for ref in self._last if ref() not in streams], list(map(weakref.ref, following))
        return pcm, following


def joined(streams: Sequence[Stream]) -> State:
    """The state of all these rows, in order: as it is where they make up one, else runs of neighbours, copied once."""
    runs: list[tuple[State, int, int]] = []
    for stream in streams:
        state, first, end = runs[-1] if runs else (None, 0, 0)
        if stream.state is state and stream.row == end:
            runs[-1] = state, first, end + 1
        else:
            runs.append((stream.state, stream.row, stream.row + 1))
    parts = [_rows(*run) for run in runs]
    return parts[0] if len(parts) == 1 else concat_states(parts)


def _rows(state: State, first: int, end: int) -> State:
    if first == 0 and all(len(array) == end for array in state.values()):
        return state
    return {name: array[first:end] for name, array in state.items()}
