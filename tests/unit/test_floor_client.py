"""What a client does with the floor: how far it was heard, where it goes on, how long it holds, what it says last."""

import json
import signal
import struct
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from misoctl import floor
from misoctl.cli import Stopped, _stop_on_signals
from misoctl.floor import Cut, Floor, Heard, Watch
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

TEXT = "One. Two comes next. Three is the last."
RATE = 24000


def piece(sentence: int, text: str = TEXT) -> m.Piece:
    at = [text.index(word) for word in ("One", "Two", "Three")][sentence]
    return m.Piece(id=1, number=sentence, sentence=sentence, spoken="x", spans=struct.pack("<4I", 0, 3, at, at + 3))


def heard(*counts: int, ahead_s: float = 0.0) -> Heard:
    """So many frames of each sentence came, and a part of them is still to be heard."""
    made = Heard(lambda: ahead_s)
    for sentence, frames in enumerate(counts):
        made.came(piece(sentence))
        for seq in range(frames):
            made.came(m.Pcm(id=1, seq=seq, rate=RATE, turn=0, data=bytes(3840)))
    return made


def test_what_is_left_begins_with_the_sentence_that_is_heard():
    left = [heard(10, 10, 10, ahead_s=2.4 - s).left(TEXT, False) for s in (0.0, 0.7, 0.9, 1.5, 1.7, 2.4)]
    assert [text.split()[0] for text in left] == ["One.", "One.", "Two", "Two", "Three", "Three"]


def test_of_what_was_never_heard_all_is_left():
    assert Heard().left(TEXT, False) == TEXT
    assert heard(0).left(TEXT, False) == TEXT


def test_parts_of_one_sentence_are_one():
    made = heard(10)
    made.came(m.Piece(id=1, number=1, sentence=0, spoken="x", spans=struct.pack("<4I", 0, 3, 30, 33)))
    assert made.left(TEXT, False) == TEXT


def cut(stage: Floor, why: str, made: Heard) -> Floor:
    """It had the floor, and lost it while the third sentence was heard."""
    stage._client, stage._heard = Taken(), made
    with stage:
        raise Cut(why)
    return stage


class Taken:
    """A connection to misod, as far as the end of a turn needs one."""

    def __init__(self):
        self.said = []

    def leave_floor(self, request: int, again: bool = False) -> None:
        self.said.append(f"leave {again}")

    def close(self) -> None:
        self.said.append("close")

    def hold_floor(self, request: int, seconds: float) -> None:
        self.said.append(f"hold {seconds:g}")


@pytest.mark.parametrize(
    ("resume", "why", "rest", "end", "said"),
    [
        (False, "cut", "", "interrupted", ["leave False", "close"]),
        (True, "cut", "Three is the last.", "", ["leave True"]),
        (False, "paused", "Three is the last.", "", ["leave True"]),
        (True, "hushed", "", "hushed", ["leave False", "close"]),
        (True, "late", "", "its player did not end in time", ["leave False", "close"]),
        (True, "as no one knows", "", "as no one knows", ["leave False", "close"]),
    ],
)
def test_what_becomes_of_who_lost_the_floor(resume, why, rest, end, said):
    made = heard(10, 10, 10)
    stage = cut(Floor({"resume": resume}, True, TEXT), why, made)
    assert (stage.rest, stage.end, stage._client.said) == (rest, end, said)


def test_of_a_script_the_turn_goes_on():
    text = "[0] One. Two comes next.\n[1] Yes. Three is the last."
    made = Heard()
    for sentence in range(3):
        made.came(piece(sentence, text))
        made.came(m.Pcm(id=1, seq=sentence, rate=RATE, turn=0, data=bytes(3840)))
    assert cut(Floor({}, True, text, script=True), "paused", made).rest == "[1] Yes. Three is the last."


def test_a_second_cut_counts_from_what_was_left():
    stage = cut(Floor({"resume": True}, True, TEXT), "cut", heard(0))
    assert stage.rest == TEXT


@pytest.mark.parametrize(("end", "code"), [("dropped", None), ("same", None), ("interrupted", errors.FAILED)])
def test_what_was_not_heard_is_told(capsys, end, code):
    stage, lines = Floor({}, True, TEXT), []
    stage.end = end
    if code is None:
        stage.report(lines.append, "--json")
        assert len(lines) == 1 and lines[0].startswith("dropped: ")
    else:
        with pytest.raises(Failure) as caught:
            stage.report(lines.append, "--json")
        assert caught.value.exit_code == code and end in str(caught.value)
    assert json.loads(capsys.readouterr().out) == {"text": TEXT, "end": end}


def test_the_floor_is_held_for_as_long_as_the_speech_lasts_and_no_longer(monkeypatch):
    client = Taken()
    monkeypatch.setattr(Watch, "start", lambda self: None)
    watch = Watch(client, 1)
    watch._hold()  # more is to come: nobody knows how long
    for since_s, holds in ((-5, 2), (floor.SLACK_S - 1, 3), (floor.SLACK_S + 1, 3)):
        watch.until_s = time.monotonic() - since_s
        watch._hold()
        assert client.said == [f"hold {floor.HOLD_S:g}"] * holds


def test_what_is_known_of_the_length_is_the_last_frame_s_end():
    made = heard(10, 15, ahead_s=1.5)
    assert made.ends_s is None
    made.came(done())
    assert made.ends_s == pytest.approx(time.monotonic() + 1.5, abs=1)


@pytest.fixture
def watch(monkeypatch):
    """Of who has the floor, without its thread; it is told by `_why` and a signal."""
    monkeypatch.setattr(Watch, "start", lambda self: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)
    yield Watch(Taken(), 1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_cut_is_raised_once_and_not_of_a_stranger_s_signal(watch):
    signal.raise_signal(signal.SIGUSR1)
    watch._why = "cut"
    with pytest.raises(Cut):
        signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)


def test_who_was_stopped_is_not_cut_while_it_cleans_up(watch):
    _stop_on_signals()
    watch._why = "paused"
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGUSR1)


class Late(Floor):
    """Its word comes when its block is being left, before it does anything about it."""

    @property
    def _watch(self) -> Watch | None:
        if self.watch:
            signal.raise_signal(signal.SIGUSR1)
        return self.watch

    @_watch.setter
    def _watch(self, watch: Watch | None) -> None:
        self.watch = watch


def test_a_cut_that_comes_while_the_block_is_left_is_nowhere_raised(watch, monkeypatch):
    monkeypatch.setattr(Watch, "join", lambda self: None)
    stage = Late({"resume": True}, True, TEXT)
    stage._client, stage._watch, watch._why = Taken(), watch, "cut"
    with stage:
        pass
    assert (stage.rest, stage.end, stage._client.said) == ("", "", ["leave False", "close"])


def test_a_cut_waits_until_a_generator_is_told_that_its_block_is_left(watch):
    frames = []

    @contextmanager
    def ready():
        yield
        frames.append(sys._getframe(1))

    with ready():
        pass
    watch._why = "cut"
    watch._on_signal(signal.SIGUSR1, *frames)
    with pytest.raises(Cut):
        watch._on_signal(signal.SIGUSR1, sys._getframe())


def test_the_word_is_sent_until_it_is_heard(watch):
    sent, took = [], watch._on_signal
    signal.signal(signal.SIGUSR1, lambda *given: sent.append(1) if len(sent) < 2 else took(*given))
    sender = threading.Thread(target=watch._cut, args=("cut",))
    with pytest.raises(Cut):
        sender.start()
        time.sleep(30)
    sender.join()
    assert len(sent) == 2


def done() -> m.Done:
    made = {name: None if limit.optional else {"str": "x", "bin": b""}.get(limit.kind, limit.low) for name, limit in
            m.Done.limits().items()}  # fmt: skip
    return m.Done(**made)
