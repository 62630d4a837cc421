"""When held speech may start so that it plays without a gap. Pure: knows no player and no clock; time is an argument.

Speech is made at a real-time factor r: seconds of work a second of speech. With H seconds of it held and R left to
make, all is made after r x R and heard after H + R: playing may start once H >= R x (r - 1).
"""

import math
from dataclasses import dataclass, field

LETTERS_A_SECOND = 13.0  # a calm speaker's pace: too slow a guess waits a little longer, too fast a one gaps
LETTERS_A_DIGIT = 4.0  # written out
CALM = 0.75  # an r below which the lead grows faster than arrivals ever wavered
CUSHION_S = 0.24  # above it: three frames, for what the machine does beside
SURE = 3.0  # standard deviations: r is looked at anew with each frame, and only ever too low starts too early
PRIOR_S = 0.5  # as much timed speech is misod's word of its last request worth
TIMED_S = 0.32  # without that word, how much must be timed before r is more than a bound
PRIOR_VARIANCE = 0.006  # of the work a second of speech takes, in s^2, until more is known
PRIOR_COUNT = 6
BURST_S = 0.005  # what comes closer together was made together
STALL_S = 1.0  # this much longer than four times as slow, and it was no work on this speech: it waited for others
OVERRUN = 0.1  # of what was made, the least that is thought to be left
MAX_HELD_S = 1200.0  # 58 MB at 24 kHz
NOTICED_S = 0.02  # a shorter gap is within what every player keeps in hand


def expected_s(text: str) -> float:
    """About how long it takes to say."""
    digits = sum(c.isdigit() for c in text)
    return (len(text) + (LETTERS_A_DIGIT - 1) * digits) / LETTERS_A_SECOND


@dataclass
class Prebuffer:
    """`began_s`: when it was asked for. `rtf`: misod's last, if known. `asked_s`: hold so much, plan nothing."""

    began_s: float
    expected_s: float = 0.0
    rtf: float | None = None
    asked_s: float | None = None
    made_s: float = 0.0
    _timed_s: float = 0.0  # of it, what was seen to take work
    _work_s: float = 0.0  # that work
    _squares: float = 0.0  # sum of work^2 / speech, a burst a term
    _count: int = 0
    _last_s: float = 0.0
    _burst_s: float = 0.0  # speech in the burst that may not be over
    _burst_work_s: float | None = None  # None: of the first, nobody saw when it began

    def arrived(self, audio_s: float, now_s: float) -> None:
        """So much more speech is here."""
        if self.made_s and now_s - self._last_s > BURST_S:
            self._close_burst()
            self._burst_s, self._burst_work_s = 0.0, now_s - self._last_s
        self._burst_s += audio_s
        self.made_s += audio_s
        self._last_s = now_s

    def _close_burst(self) -> None:
        work_s, audio_s = self._burst_work_s, self._burst_s
        if work_s is None or work_s > STALL_S + 4 * audio_s * max(1.0, self.factor()):
            return
        self._timed_s += audio_s
        self._work_s += work_s
        self._squares += work_s**2 / audio_s
        self._count += 1

    @property
    def timed(self) -> bool:
        """Whether the factor is more than a bound."""
        return self.rtf is not None or self._timed_s >= TIMED_S

    def factor(self) -> float:
        """The real-time factor that was seen; until then, one that it cannot be above."""
        if not self.timed:
            return (self._last_s - self.began_s) / self.made_s  # as if nothing else had taken time
        prior_s = 0.0 if self.rtf is None else PRIOR_S
        return (self._work_s + prior_s * (self.rtf or 0.0)) / (self._timed_s + prior_s)

    def needed_s(self) -> float:
        """How much speech to hold before it may start. After the first arrival."""
        return self._needed_s(self._seen_s(), self._left_s())

    def wait_s(self, held_s: float) -> float:
        """About how long it takes until as much is held, or all of it is made."""
        left_s, seen_s = self._left_s(), self._seen_s()
        low_s, high_s = 0.0, left_s  # of speech
        for _ in range(20):
            middle_s = (low_s + high_s) / 2
            if held_s + middle_s >= self._needed_s(seen_s + middle_s, left_s - middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        return high_s * self.factor()

    def _needed_s(self, seen_s: float, left_s: float) -> float:
        """Once `seen_s` of speech was timed, and so much is left."""
        if self.asked_s is not None:
            return self.asked_s
        factor = self.factor()
        cushion_s = CUSHION_S if factor > CALM else 0.0
        if not self.timed:
            return cushion_s + left_s * max(0.0, factor - 1)
        variance = self._variance(factor)

        def behind_s(ahead_s: float) -> float:
            """How far the work may fall behind while so much more is made: its mean is not known exactly, too."""
            return ahead_s * (factor - 1) + SURE * math.sqrt(variance * ahead_s * (1 + ahead_s / seen_s))

        soon_s = SURE**2 * variance / (4 * (1 - factor) ** 2) if factor < 1 else left_s  # where chance is worst
        worst_s = max(0.0, behind_s(left_s), behind_s(min(soon_s, left_s)))
        return min(MAX_HELD_S, cushion_s + worst_s)

    def _variance(self, factor: float) -> float:
        """Of the work that a second of speech takes."""
        seen = self._squares - 2 * factor * self._work_s + factor**2 * self._timed_s
        return (max(0.0, seen) + PRIOR_COUNT * PRIOR_VARIANCE) / (self._count + PRIOR_COUNT)

    def _seen_s(self) -> float:
        return self._timed_s + PRIOR_S

    def _left_s(self) -> float:
        return max(self.expected_s - self.made_s, OVERRUN * self.made_s)


@dataclass
class Playhead:
    """Until when what was handed on lasts, by the wall clock: a player that reads a pipe tells nothing of itself."""

    handed_s: float = 0.0  # of audio, so far
    gaps: list[tuple[float, float]] = field(default_factory=list)  # (after so much of it, how long)
    _until_s: float | None = None  # nothing was yet

    @property
    def underruns(self) -> int:
        return len(self.gaps)

    @property
    def gap_s(self) -> float:
        return sum(gap_s for _, gap_s in self.gaps)

    def ran_dry(self, now_s: float) -> bool:
        return self._until_s is not None and now_s > self._until_s + NOTICED_S

    def handed(self, audio_s: float, now_s: float) -> None:
        if self.ran_dry(now_s):
            self.gaps.append((self.handed_s, now_s - self._until_s))
        self._until_s = max(now_s, self._until_s or now_s) + audio_s
        self.handed_s += audio_s

    def rest(self) -> None:
        """Nothing was to follow: that nothing is heard now is no gap."""
        self._until_s = None

    def ahead_s(self, now_s: float) -> float:
        """How much of it is still to be heard."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - now_s)
