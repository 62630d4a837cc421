"""The reader and its child: the same pieces as in this process, started once, restarted once, gone with its parent."""

import logging
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from misod.text import Limits, Reader, child, pieces, reader
from misod.text.grammar import Answers
from misod.text.reader import Grammars

NANO = Limits(max_words=18, max_characters=105, letters=True)
TEXT = "It cost $5.3 billion in 2024. Plain words here. See No. 5.\n\n" * 2 + "Привет."


@pytest.fixture
def grammars():
    made = Grammars()
    made.start()
    yield made
    made.close()


def told(text: str, grammars: Grammars, **manner) -> list:
    made = Reader(text, NANO, grammars=grammars, **manner)
    return list(iter(made.next, None))


def test_the_child_reads_as_this_process_does(grammars):
    assert told(TEXT, grammars) == list(pieces(TEXT, NANO))


def test_numbers_on_lines_of_their_own_are_one_question_each(grammars):
    text = "It was 5\n6\r\n7,\x0b8\u20289\x850\n\n1."
    assert told(text, grammars) == list(pieces(text, NANO))
    assert told("Then 2.", grammars)[0].text == "Then two."


def test_without_a_child_it_is_read_here():
    unstarted = Grammars()
    assert told(TEXT, unstarted) == list(pieces(TEXT, NANO)) and unstarted.pid is None


def test_what_no_piece_holds_is_counted_at_the_end(grammars):
    made = Reader("One. Привет. Two 2. мир", NANO, grammars=grammars)
    assert [made.next().text, made.next().text, made.next()] == ["One.", "Two two.", None]
    assert made.unread == 9
    assert made.next() is None


def test_normalize_and_emoji_reach_the_reading(grammars):
    assert [p.text for p in told("Go 🚀 $5", grammars, emoji="name")] == ["Go rocket five dollars."]
    assert [p.text for p in told("Go 🚀 $5", grammars, normalize=False)] == ["Go five."]


def test_the_next_piece_is_asked_for_before_it_is_wanted(grammars, monkeypatch):
    asked = []
    real = Grammars.ask
    monkeypatch.setattr(Grammars, "ask", lambda self, run: asked.append(run) or real(self, run))
    made = Reader("Plain words. It is 12. It is 13.", NANO, grammars=grammars)
    assert not asked
    assert made.next().text == "Plain words." and asked == ["is 12."]
    assert made.next().text == "It is twelve." and asked == ["is 12.", "is 13."]


def test_what_was_asked_once_is_remembered(grammars):
    told("It is 12.", grammars)
    grammars.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "answer", None)
        assert [p.text for p in told("It is 12.", grammars)] == ["It is twelve."]


def test_readers_share_the_child_and_one_that_closes_early_harms_no_other(grammars):
    texts = [f"It is {n}. Then {n + 1} more. And {n + 2}." for n in (20, 40, 60, 80)]
    readers = [Reader(text, NANO, grammars=grammars) for text in texts]
    readers[1].next()
    readers[1].close()
    assert readers[1].next() is None
    rest = [list(iter(readers[i].next, None)) for i in (3, 0, 2)]
    assert rest == [list(pieces(texts[i], NANO)) for i in (3, 0, 2)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_child_that_dies_or_hangs_is_started_again_once_and_then_done_without(grammars, caplog, monkeypatch, how):
    monkeypatch.setattr(reader, "HANGS_S", 0.5 if how == signal.SIGSTOP else 5.0)
    caplog.set_level(logging.WARNING)
    first = grammars.pid
    os.kill(first, how)
    assert [p.text for p in told("It is 12.", grammars)] == ["It is twelve."]
    second = grammars.pid
    assert second not in (None, first) and not psutil.pid_exists(first)
    os.kill(second, how)
    assert [p.text for p in told("It is 13. It is 14.", grammars)] == ["It is thirteen.", "It is fourteen."]
    assert grammars.pid is None and not psutil.pid_exists(second)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "started again" in lines[0] and "beside the frames" in lines[1]
    assert "12" not in "".join(lines), "no text of a user in the log"


def test_the_child_ignores_ctrl_c_and_is_in_no_group_of_misods(grammars):
    assert told("It is 12.", grammars)
    assert os.getpgid(grammars.pid) != os.getpgid(0)
    os.kill(grammars.pid, signal.SIGINT)
    assert [p.text for p in told("It is 13.", grammars)] == ["It is thirteen."]


def test_a_killed_misod_leaves_no_child():
    code = "from misod.text import reader; import time\nreader.warm(); print(reader._GRAMMARS.pid, flush=True)\n"
    code += "time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    deadline_s = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, "the child outlived its parent"
        time.sleep(0.02)


def test_warm_twice_is_one_child():
    made = Grammars()
    made.start()
    pid = made.pid
    made.start()
    assert made.pid == pid
    made.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("run", ["\ud800 lone", "5" * 60, "[" * 20, "\x00", "\\", "☃ 5", "5\u0301"])
def test_the_child_answers_whatever_it_is_asked(grammars, run):
    assert grammars.answer(grammars.ask(run)) == child.answer(run)


def test_answers_are_bounded_by_count_and_by_bytes():
    kept = Answers(most=3, most_bytes=20)
    for run in "abcd":
        kept.put(run, "x")
    assert [kept.get(run) for run in "abcd"] == [None, "x", "x", "x"]
    kept.get("b")
    kept.put("e", "x")
    assert kept.get("c") is None and kept.get("b") == "x"
    kept.put("f", "x" * 15)
    assert kept.get("f") and sum(kept.get(run) is not None for run in "bde") == 2
    kept.put("g", "x" * 30)
    assert [kept.get(run) for run in "bdefg"] == [None] * 5
