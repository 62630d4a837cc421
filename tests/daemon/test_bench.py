"""`misoctl bench`, through real daemons: what it prints, and that it leaves nothing behind."""

import json
import signal
import subprocess

import pytest
from harness import MISOCTL, Home, until

from misoctl.bench import Bench, Speed, lines
from protocol import errors

SHORT = ["bench", "--seconds", "0.5", "--rounds", "2"]


@pytest.fixture(scope="module")
def voice():
    """A home in which the bundled voice speaks in two rows at most."""
    home = Home()
    home.daemon = home.nano(MISO_MAX_ROWS="2")
    yield home
    home.close()


def bench(home, *more: str) -> subprocess.CompletedProcess:
    command = [MISOCTL, *SHORT, *more]
    return subprocess.run(command, env=home.env, capture_output=True, text=True, timeout=60, check=False)


def test_the_bundled_voice_is_measured_alone_and_in_company(voice):
    done = bench(voice, "--json", "-q")
    assert done.returncode == 0 and not done.stderr
    found = json.loads(done.stdout)
    assert [each["rows"] for each in found["speeds"]] == [1, 2]
    for each in found["speeds"]:
        assert each["rtf"] > 0 and each["together"] > 0
        assert each["frame_ms"] == pytest.approx(80 * each["rtf"])
    assert len(found["ttfa_ms"]) == 2 and min(found["ttfa_ms"]) > 0
    assert found["model"] == "nano" and found["peak_bytes"] >= found["active_bytes"] > 0
    assert set(found["predicted"]) in ({"why"}, {"chip", "gb_per_s", "low_ms", "high_ms"})


def test_more_requests_at_once_than_a_pipe_holds(fake):
    done = bench(fake)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" s")] == ["1", "2", "4", "8"]


def test_a_model_that_is_not_here_is_one_line(fake):
    done = bench(fake, "--model", "nope")
    assert done.returncode == errors.NO_INPUT and not done.stdout
    assert done.stderr.count("\n") == 1 and "nope" in done.stderr


def test_ctrl_c_ends_it_and_all_its_requests(voice):
    before = voice.wait_for("ready", voice.daemon).frames
    command = [MISOCTL, "bench", "--seconds", "60", "--rounds", "1", "-q"]
    with subprocess.Popen(command, env=voice.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: voice.wait_for("ready", voice.daemon).frames > before + 12, "the first row")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert process.returncode == errors.INTERRUPTED and not out and not err
    until(lambda: voice.wait_for("ready", voice.daemon).speaking == 0, "no rows")


def told(predicted: dict) -> str:
    speeds = [Speed(1, 0.25, 4.0), Speed(2, 0.5, 4.0)]
    return "\n".join(lines(Bench("miso", "ab" * 32, "metal", "1", [90.0, 110.0], speeds, 1, 2, 3, predicted)))


def test_a_prediction_is_set_beside_what_was_measured():
    text = told({"chip": "M2 Max", "gb_per_s": 400, "low_ms": 23.3, "high_ms": 34.6})
    assert "predicted for 1 row on M2 Max, 400 GB/s: 23 to 35 ms a frame; measured 20 ms" in text
    assert "100 ms, median of 2 (90 to 110)" in text


def test_where_none_is_made_it_says_why():
    assert told({"why": "no prediction: so"}).endswith("no prediction: so")
