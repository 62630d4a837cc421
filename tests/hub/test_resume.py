"""A pull that is cut, by the network or by kill -9, goes on where it was and ends as one that was not."""

import random
import signal
import time

import pytest
from pulling import Home, hub_of

from misod.weights import sources
from protocol import errors

MISO = sources.WEIGHTS[0]
POINTS = 6  # and 20 with -m slow
HANG_S = 60  # no promise: what keeps a broken test from waiting for ever


@pytest.fixture(scope="module")
def uncut(tmp_path_factory, files):
    """What a pull makes that nothing disturbs."""
    hub = hub_of(files)
    home = Home(tmp_path_factory.mktemp("uncut"), hub)
    assert home.pull("-q").returncode == 0
    hub.close()
    return home.contents()


def starts(hub) -> list[int]:
    """Where each request for the model's bytes began."""
    return [r.start for r in hub.requests if r.path == f"/stored/{MISO.repo}/model.safetensors"]


@pytest.fixture(params=[POINTS, pytest.param(20, marks=pytest.mark.slow)])
def points(request, files) -> list[int]:
    """Offsets in the model's file."""
    size = len(files[MISO.repo]["model.safetensors"])
    return sorted(random.Random(request.param).sample(range(1, size - 500_000), request.param))


def until(holds, process) -> bool:
    """Wait for it while the process runs; False where it ended first."""
    deadline_s = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline_s
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def test_cut_by_the_network_at_many_points_one_pull_goes_on_by_itself(home, hub, points, uncut):
    hub.trouble.cuts = list(points)
    assert home.pull("-q").returncode == 0
    assert starts(hub) == [0, *points]  # not one byte twice
    assert home.contents() == uncut


def test_reset_by_the_network_at_many_points_what_had_come_is_not_fetched_again(home, hub, points, uncut):
    hub.trouble.cuts, hub.trouble.reset = list(points), True
    assert home.pull("-q").returncode == 0
    began = starts(hub)
    assert len(began) == len(points) + 1 and began == sorted(set(began))
    assert all(begin <= cut for begin, cut in zip(began[1:], points, strict=True))
    assert home.contents() == uncut


def test_killed_at_many_points_each_pull_goes_on_where_the_last_was_killed(home, hub, points, uncut):
    left = [0]
    for point in points:
        hub.trouble.hold = point + 100_000  # some of it may still be on its way
        process = home.start("pull", "--precision", "q8", "-q")
        reached = lambda at=point: len(starts(hub)) == len(left) and (home.partial() or 0) >= at  # noqa: E731
        assert until(reached, process), process.communicate()
        process.kill()
        process.communicate()
        left.append(home.partial())
        assert not (home.models / "miso").exists()
    hub.trouble.hold = None
    assert home.pull("-q").returncode == 0
    assert starts(hub) == left  # what was on the disk, to the byte
    assert home.contents() == uncut


def test_killed_while_it_converts_the_next_pull_fetches_nothing_again(home, hub, uncut):
    process = home.start("pull", "--precision", "q8", "-q")
    assert until((home.models / ".miso.partial").exists, process)
    process.kill()
    process.communicate()
    assert not (home.models / "miso").exists()
    sent = hub.sent()
    assert home.pull("-q").returncode == 0
    assert hub.sent() == sent
    assert home.contents() == uncut


def test_ctrl_c_is_exit_130_with_one_line_and_keeps_what_came(home, hub, uncut):
    hub.trouble.hold = 700_000
    process = home.start("pull", "--precision", "q8")
    assert until(lambda: (home.partial() or 0) > 500_000, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == errors.INTERRUPTED
    assert said.splitlines()[-1].startswith("misod: stopped; what is downloaded stays")
    assert "Traceback" not in said
    left, hub.trouble.hold = home.partial(), None
    assert home.pull("-q").returncode == 0
    assert starts(hub) == [0, left]
    assert home.contents() == uncut


def test_a_server_that_cannot_resume_is_read_from_the_start(home, hub, files, uncut):
    hub.trouble.cuts, hub.trouble.no_range = [1_000_000], True
    done = home.pull()
    assert done.returncode == 0 and "100%" in done.stderr
    assert starts(hub) == [0, 0]
    assert home.contents() == uncut


def test_cut_each_time_at_the_same_byte_it_gives_up_and_says_so(home, hub):
    hub.trouble.cuts = [1_000_000] * 10
    line = home.refused(errors.TRY_AGAIN)
    assert "goes on from there" in line
    assert home.partial() == 1_000_000
    assert home.pull("-q").returncode == 0


def test_two_pulls_at_once_the_second_names_the_first_and_leaves_it_alone(home, hub):
    hub.trouble.hold = 700_000
    first = home.start("pull", "--precision", "q8", "-q")
    assert until(lambda: (home.partial() or 0) > 100_000, first)
    second = home.pull("-q")
    assert second.returncode == errors.TRY_AGAIN and f"pid {first.pid}" in second.stderr
    removed = home.misod("rm", "nothing")
    assert removed.returncode == errors.NO_INPUT
    hub.trouble.hold = None
    assert first.wait(HANG_S) == 0
    assert home.misod("verify", "miso", "-q").returncode == 0
