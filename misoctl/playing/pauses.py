"""Cuts a stream of speech in its pauses, for a player of files. Pure."""

from misoctl.playing.samples import fade_in, fade_out, peak, samples_of

HOP_MS = 10.0
PAUSE_MS = 200.0  # long enough to hide that one player ends and the next begins; within a word there is none such
LEFT_MS = 40.0  # of a pause, before the cut: a last sound may ring on
SHORTEST_MS = 600.0  # a piece
QUIET = 0.01  # of the loudest yet: 40 dB under it


class Pauses:
    """add what comes, take what may be played. A cut lies in a pause, both its sides are faded: it makes no click."""

    def __init__(self, rate_hz: int):
        self._rate_hz, self._hop = rate_hz, 2 * samples_of(HOP_MS, rate_hz)
        self._pcm = bytearray()
        self._looked = 0  # bytes of it
        self._loudest = 0
        self._pause_from: int | None = None  # where the pause we are in began
        self._cut = 0  # where it may be cut, the last such place
        self._begun = False  # something was taken

    def add(self, pcm: bytes) -> None:
        self._pcm += pcm
        while len(self._pcm) - self._looked >= self._hop:
            self._look(peak(bytes(self._pcm[self._looked : self._looked + self._hop])))

    def cut_here(self) -> None:
        """As in a pause: one speech ends."""
        self._cut = len(self._pcm)

    def take(self, whole: bool, dropped_ms: float) -> bytes:
        """Up to the last pause there is, or (whole) all; b"" where there is none yet.

        `dropped_ms`: of the pause that it begins with, how long the player itself takes between two pieces.
        """
        end = len(self._pcm) if whole else self._cut
        piece, self._pcm = bytes(self._pcm[:end]), self._pcm[end:]
        self._looked, self._cut = max(0, self._looked - end), 0
        if self._pause_from is not None:
            self._pause_from = max(0, self._pause_from - end)
        if self._begun:
            piece = fade_in(self._shortened(piece, dropped_ms), self._rate_hz)
        self._begun = self._begun or bool(piece)
        return piece if whole else fade_out(piece, self._rate_hz)

    def _look(self, loudness: int) -> None:
        self._loudest = max(self._loudest, loudness)
        at, self._looked = self._looked, self._looked + self._hop
        if loudness > QUIET * self._loudest:
            self._pause_from = None
            return
        if self._pause_from is None:
            self._pause_from = at
        cut = self._pause_from + self._bytes(LEFT_MS)
        if self._looked - self._pause_from >= self._bytes(PAUSE_MS) and cut >= self._bytes(SHORTEST_MS):
            self._cut = cut

    def _shortened(self, piece: bytes, ms: float) -> bytes:
        """Without so much of the silence at its start, or as much as there is."""
        end = 0
        while (
            end < self._bytes(ms) and peak(piece[end : end + self._hop]) <= QUIET * self._loudest and end < len(piece)
        ):
            end += self._hop
        return piece[min(end, self._bytes(ms)) :]

    def _bytes(self, ms: float) -> int:
        return 2 * samples_of(ms, self._rate_hz)
