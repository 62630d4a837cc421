"""`say --quick-start` through the real daemon: nano, and the tiny kitten with a double in kittenml's place."""

import json
import sys
import wave

import pytest
from harness import HERE, Home, Raw, frames_of, until
from test_kitten_speaks import MAKE

from protocol import errors
from protocol import messages as m

FIRST, REST = "Hello to you.", " We went home."
SEED = 12  # with which kitten's part is about a second long


@pytest.fixture(scope="module")
def both():
    """Kitten is not loaded yet."""
    home = Home()
    (home.path / "models").mkdir()
    made = home.spawn([sys.executable, "-c", MAKE, str(home.path / "models" / "kitten")], {}, cwd=HERE.parents[1])
    assert made.wait(60) == 0, home.said()
    daemon = home.spawn([sys.executable, str(HERE / "kitten_misod.py")], {"MISO_MODEL": "nano"})
    home.wait_for("ready", daemon)
    yield home
    home.close()


def say(home: Home, name: str, *arguments: str) -> tuple[dict, str]:
    """The receipt, and what was told beside it."""
    how = ("--json", "--seed", str(SEED), "--quick-start")
    done = home.misoctl("say", "-o", str(home.path / f"{name}.wav"), *how, *arguments)
    assert done.returncode == errors.OK, done.stderr
    (home.path / f"{name}.json").write_text(done.stdout)
    return json.loads(done.stdout), done.stderr


def samples(home: Home, name: str) -> bytes:
    with wave.open(str(home.path / f"{name}.wav")) as file:
        return file.readframes(file.getnframes())


def spoken(raw: Raw, text: str, **options) -> tuple[bytes, m.Accepted, m.Done]:
    raw.say(1, text, seed=SEED, **options)
    got = raw.until(m.Done, ack=True)
    return b"".join(frame.data for frame in frames_of(got)), got[0], got[-1]


def load(raw: Raw, **options) -> None:
    raw.send(m.Load(id=1, **options))
    raw.until(m.Status, 1)


def test_the_first_sentence_is_kittens_the_rest_the_models_to_the_sample_and_replayed(both):
    without, told = say(both, "plain", FIRST + REST)
    line = "kitten is not loaded beside nano: `misoctl load --quick-start`"
    assert told == f"misoctl: no quick start: {line}\n"
    assert (without["not_quick"], without["quick_digest"]) == (line, None)
    loaded = both.misoctl("load", "--quick-start")
    assert loaded.returncode == errors.OK and "nano is ready, kitten beside it" in loaded.stderr
    parts = ("--split-sentences", str(both.path / "parts"))
    quick, told = say(both, "quick", *parts, FIRST + REST)
    assert (quick["model"], quick["end"], quick["spoken"], told) == ("nano", "eos", FIRST + REST, "")
    assert quick["frames"] * 1920 * 2 == len(samples(both, "quick")) and quick["spans"][3] == [14, 16, 14, 16]
    with Raw(both) as raw:
        raw.send(m.StatusRequest(id=1, quick_start=True))
        assert raw.until(m.Status)[-1].quick_digest == quick["quick_digest"]
        assert raw.ping().quick_digest is None  # of whom it is not known that they know the field
        raw.say(1, "Hello.", quick_start="", session="talk")
        assert raw.until(m.Error)[-1].code == "bad_value"
        whole, accepted, _ = spoken(raw, FIRST + REST)
        assert whole == samples(both, "plain")
        assert accepted.rtf is None  # a quick start tells nothing of how fast the model is
        rest, *_ = spoken(raw, REST)
        first, _, done = spoken(raw, FIRST, quick_start="")
        assert samples(both, "quick") == first + rest and done.quick_digest == quick["quick_digest"]
        assert (samples(both, "parts/0001"), samples(both, "parts/0002")) == (first, rest)
        alone, _, done = spoken(raw, FIRST, model="kitten", quick_start="")
        assert alone == first and (done.not_quick, done.quick_digest) == ("kitten speaks all of it", None)
    again = both.misoctl("replay", str(both.path / "quick.json"), "-o", str(both.path / "again.wav"))  # loads both
    assert again.returncode == errors.OK, again.stderr
    assert samples(both, "again") == samples(both, "quick")
    path = both.path / "other.json"
    path.write_text(json.dumps(quick | {"quick_digest": "0" * 64}))
    done = both.misoctl("replay", str(path), "-o", str(both.path / "other.wav"))
    assert done.returncode == errors.BAD_DATA and "begun by other weights than kitten has" in done.stderr
    assert not (both.path / "other.wav").exists()


@pytest.mark.parametrize("seen", [1, 20], ids=["of kitten", "of nano"])
def test_cancelled_in_the_middle_both_are_free(both, seen):
    with Raw(both) as raw:
        load(raw, model="nano", quick_start=True)
        raw.say(2, FIRST + REST * 4, seed=SEED, quick_start="")
        for _ in range(seen):
            raw.until(m.Pcm)
        raw.send(m.Cancel(id=2))
        done = raw.until(m.Done)[-1]
        assert done.end == "cancelled" and done.quick_digest and done.spoken.startswith(FIRST)
        until(lambda: raw.ping().speaking == 0, "the row to be free")
        raw.send(m.Unload(id=3))
        assert raw.until(m.Status, 3)[-1].state == "idle"
        raw.send(m.StatusRequest(id=4, quick_start=True))
        assert raw.until(m.Status, 4)[-1].quick_digest is None


def test_what_cannot_be_loaded_beside_is_one_line_and_the_model_speaks_on(home):
    refusal = home.path / "refusal"
    home.fake({"FAKE_LOAD_ERROR": str(refusal)}, model="nano")
    done = home.misoctl("load", "--quick-start")
    assert done.returncode == errors.NO_INPUT and "no model named 'kitten': `misoctl pull kitten`" in done.stderr
    kitten = home.path / "models" / "kitten"
    kitten.mkdir(parents=True)
    (kitten / "config.json").write_text('{"type": "KITTEN2"}')
    refusal.write_text("kittenml is not there")
    done = home.misoctl("load", "--quick-start", "-q")
    assert done.returncode == errors.SOFTWARE and done.stderr.startswith("misoctl: kittenml is not there")
    assert len(done.stderr.splitlines()) == 1 and home.traced("close") == 0
    with Raw(home) as raw:
        assert raw.ping().state == "ready"
        raw.say(1, "last 2", quick_start="")
        assert raw.until(m.Done)[-1].not_quick.startswith("kitten is not loaded beside nano")
        refusal.unlink()
        raw.say(2, "last 40")
        load(raw, quick_start=True)  # what speaks is finished first
        assert home.trace.read_text().splitlines()[-2:] == ["release last 40", "open kitten"]
        load(raw, quick_start=True)
        assert home.traced("open") == 2
        raw.send(m.Unload(id=3))
        raw.until(m.Status, 3)
        assert home.traced("close") == 2


def test_an_older_daemon_is_told_of_and_hears_of_nothing_new(home):
    home.fake({"FAKE_VERSION": "1.1"})
    out = ("-o", str(home.path / "a.wav"), "Hello.")
    done = home.misoctl("say", "--quick-start", *out)
    *_, line = done.stderr.splitlines()
    assert done.returncode == errors.VERSION_SKEW, done.stderr
    assert "misod speaks protocol 1.1, which has no quick_start" in line and "misoctl stop" in line
    assert home.misoctl("say", *out).returncode == errors.OK
