"""Progress: what a bar says at which moment, with time and terminal as arguments."""

import io

import pytest

from misod.weights.progress import Progress, duration, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_line_has_bytes_rate_and_time_left(clock):
    bar = Progress("fetching", 10_000_000_000, Terminal(), clock=clock)
    for _ in range(10):
        clock.now += 1
        bar.add(100_000_000)
    assert bar.line(80) == "fetching [#                 ]  10%  1.0 GB of 10.0 GB  100 MB/s  1 min 30 s left"


@pytest.mark.parametrize("columns", [5, 20, 40, 60, 80, 200])
def test_it_never_wraps(clock, columns):
    bar = Progress("converting", 9_000_000_000, Terminal(), done=8_999_999_999, clock=clock)
    clock.now = 3
    bar.add(1)
    assert len(bar.line(columns)) <= columns


def test_the_rate_is_that_of_the_last_seconds(clock):
    bar = Progress("fetching", 10**12, None, clock=clock)
    for rate in [1_000_000] * 30 + [50_000_000] * 30:
        clock.now += 1
        bar.add(rate)
    assert bar.rate() == pytest.approx(50_000_000, rel=0.01)


def test_what_was_there_before_counts_as_done_and_not_as_speed(clock):
    bar = Progress("fetching", 100, None, done=90, clock=clock)
    clock.now += 1
    bar.add(1)
    assert bar.rate() == 1 and "91%" in bar.line(100)


def test_a_terminal_is_redrawn_a_few_times_a_second_and_left_with_a_whole_line(clock):
    screen = Terminal()
    with Progress("fetching", 1000, screen, clock=clock) as bar:
        for _ in range(1000):
            clock.now += 0.001
            bar.add(1)
    drawn = screen.getvalue().split("\r")[1:]
    assert 5 <= len(drawn) <= 15
    assert "100%" in drawn[-1] and drawn[-1].endswith("\n")


def test_a_pipe_gets_a_line_each_tenth_without_a_bar(clock):
    pipe = io.StringIO()
    with Progress("fetching", 1000, pipe, clock=clock) as bar:
        for _ in range(1000):
            bar.add(1)
    lines = pipe.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [f"{tenth}0%" for tenth in range(1, 11)]
    assert "[" not in pipe.getvalue() and "\r" not in pipe.getvalue()


def test_without_a_stream_it_only_counts(clock):
    with Progress("", 0, None, clock=clock) as bar:
        bar.add(5)
    assert bar.done == 5


def test_where_bytes_come_again_it_goes_back(clock):
    bar = Progress("fetching", 100, Terminal(), clock=clock)
    bar.add(50)
    bar.add(-50)
    assert "  0%" in bar.line(80)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (22_364, "22 KB"),
        (6_350_000, "6.3 MB"),
        (384_644_900, "385 MB"),
        (16.4e9, "16.4 GB"),
    ],
)
def test_sizes_are_as_people_say_them(count, said):
    assert size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_are_as_people_say_them(seconds, said):
    assert duration(seconds) == said
