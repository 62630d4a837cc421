"""`piece` messages: what the frames after them say, and which part of the text that is."""

import struct
from itertools import pairwise

import pytest
from harness import Raw, frames_of

from protocol import messages as m

TEXT = "**One** cat sat.  Then 12 came, by 9:30!\n\nAll slept."


def spans_of(piece: m.Piece) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("<4I", piece.spans))


def test_each_piece_is_told_before_its_first_frame_and_together_they_are_the_receipt(nano):
    with Raw(nano) as raw:
        raw.say(1, TEXT, pieces=True)
        got = raw.until(m.Done, ack=True)
    pieces, done = [x for x in got if isinstance(x, m.Piece)], got[-1]
    kinds = [type(x) for x in got if isinstance(x, m.Piece | m.Pcm)]
    assert kinds[0] is m.Piece and all(b is m.Pcm for a, b in pairwise(kinds) if a is m.Piece)
    assert [(piece.number, piece.sentence) for piece in pieces] == [(0, 0), (1, 1), (2, 2)]
    assert " ".join(piece.spoken for piece in pieces) == done.spoken
    shift, joined = 0, []
    for piece in pieces:
        joined += [(a + shift, b + shift, c, d) for a, b, c, d in spans_of(piece)]
        shift += len(piece.spoken) + 1
    assert joined == list(struct.iter_unpack("<4I", done.spans))
    said = {piece.spoken[a:b]: TEXT[c:d] for piece in pieces for a, b, c, d in spans_of(piece)}
    assert said["cat"] == "cat" and said["twelve"] == "12" and said["slept."] == "slept."


def test_who_does_not_ask_is_told_none_and_gets_the_same_samples(nano):
    with Raw(nano) as raw:
        raw.say(1, TEXT)
        plain = raw.until(m.Done, ack=True)
        raw.say(2, TEXT, pieces=True)
        told = raw.until(m.Done, ack=True)
    assert not any(isinstance(x, m.Piece) for x in plain)
    assert [x.data for x in frames_of(plain)] == [x.data for x in frames_of(told)]


def test_each_turn_of_a_script_begins_a_piece(nano):
    text = "[0] Hello there.\n[1] Good day."
    with Raw(nano) as raw:
        raw.say(1, text, script=True, pieces=True)
        got = raw.until(m.Done, ack=True)
    first_frames = [(a.spoken, a.sentence, b.turn) for a, b in pairwise(got) if isinstance(a, m.Piece)]
    assert first_frames == [("Hello there.", 0, 0), ("Good day.", 1, 1)]
    assert [text[c:d] for x in got if isinstance(x, m.Piece) for _, _, c, d in spans_of(x)][-1] == "day."


@pytest.mark.slow
def test_parts_of_a_long_sentence_are_of_one_sentence(nano):
    long = "It is a " + "very " * 62 + "long way. And back."
    with Raw(nano) as raw:
        raw.say(1, long, pieces=True, max_seconds=60)
        pieces = [x for x in raw.until(m.Done, ack=True) if isinstance(x, m.Piece)]
    assert len(pieces) > 2 and [x.sentence for x in pieces] == [0] * (len(pieces) - 1) + [1]
