"""sounddevice, by a module of ours that records what it is given; and what is asked of playing on the command line."""

import json
import sys
import textwrap

import numpy as np
import pytest
from click.testing import CliRunner

from misoctl import player
from misoctl.cli import cli
from misoctl.playing.device import LATENCY_S, Device
from protocol import errors
from protocol.errors import Failure
from protocol.settings import PLAYERS, ConfigError, Playing, load_playing
from tests.clicks import worst_click

RATE = 24_000
REST = 2400 + 480  # samples of silence that a device may drop at a stop, and a slice
MODULE = """
    import time

    class PortAudioError(Exception):
        pass

    class default:
        device = [-1, 1]

    DEVICES = [
        {"index": 0, "name": "Microphone", "max_output_channels": 0, "default_samplerate": 44100.0},
        {"index": 1, "name": "Loudspeakers", "max_output_channels": 2, "default_samplerate": 48000.0},
        {"index": 2, "name": "USB Audio", "max_output_channels": 2, "default_samplerate": 44100.0},
    ]
    pcm, calls, asked = bytearray(), [], {}
    flags, broken = [], None

    def query_devices(device=None, kind=None):
        if kind is None:
            return DEVICES
        outputs = [d for d in DEVICES if d["max_output_channels"]]
        if device is None:
            if not outputs:
                raise PortAudioError("Error querying device -1")
            return outputs[0]
        found = [d for d in outputs if device in (d["index"], d["name"])]
        if not found:
            raise ValueError(f"No output device matching {device!r}")
        return found[0]

    class RawOutputStream:
        def __init__(self, **kwargs):
            asked.update(kwargs)
            if broken:
                raise PortAudioError(broken)

        write_available = 2400

        def start(self):
            calls.append("start")

        def write(self, data):
            pcm.extend(data)
            time.sleep(0.002)
            return flags.pop() if flags else False

        def stop(self):
            calls.append("stop")

        def close(self, ignore_errors=True):
            calls.append("close")
"""


@pytest.fixture
def sounddevice(tmp_path, monkeypatch):
    (tmp_path / "sounddevice.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MISO_HOME", str(tmp_path / "home"))
    import sounddevice

    yield sounddevice
    monkeypatch.delitem(sys.modules, "sounddevice")


def tone(seconds: float) -> bytes:
    t = np.arange(round(seconds * RATE)) / RATE
    return np.round(9000 * np.sin(2 * np.pi * 180 * t + 1)).astype("<i2").tobytes()


def test_it_plays_every_byte_then_stops_and_closes(sounddevice):
    sink = player.open_player(Playing(lead_in_ms=0))
    sink.write(tone(0.5), RATE)
    sink.write(tone(0.3), RATE)
    sink.close(whole=True)
    assert bytes(sounddevice.pcm) == tone(0.5) + tone(0.3) + bytes(2 * REST)
    assert sounddevice.calls == ["start", "stop", "close"]
    kind = {"samplerate": RATE, "channels": 1, "dtype": "int16", "device": None, "latency": LATENCY_S}
    assert sounddevice.asked == kind


def test_cut_short_it_is_silent_at_once_and_without_a_click(sounddevice):
    sink = player.open_player(Playing(lead_in_ms=0))
    sink.write(tone(20), RATE)
    while len(sounddevice.pcm) < 9600:
        pass
    sink.close(whole=False)
    heard = np.frombuffer(bytes(sounddevice.pcm), "<i2") / 32768
    assert 4800 <= len(heard) < 15 * RATE and sounddevice.calls[-2:] == ["stop", "close"]
    assert heard[-1] == 0 and worst_click(heard, [len(heard) - REST], RATE) < 1.5
    assert not heard[-REST:].any() and heard[-REST - 20 : -REST - 1].any()
    spoken = len(heard) - REST - 240
    np.testing.assert_array_equal(heard[:spoken], np.frombuffer(tone(20), "<i2")[:spoken] / 32768)


def test_cut_short_where_nothing_follows_it_decays(sounddevice):
    device = Device()
    device.open(RATE)
    device.write(tone(0.0503))
    device.stop()
    device.finish()
    heard = np.frombuffer(bytes(sounddevice.pcm), "<i2") / 32768
    assert heard[-1] == 0 and worst_click(heard, [len(tone(0.0503)) // 2, len(heard) - REST], RATE) < 1.5


def test_underruns_are_those_that_portaudio_tells_of(sounddevice):
    sounddevice.flags += [True, False, True, True]
    sink = player.open_player(Playing(lead_in_ms=0))
    sink.write(tone(1), RATE)
    sink.close(whole=True)
    assert sink.underruns == 3 and [gap_s for _, gap_s in sink.new_gaps()] == [None] * 3


def test_between_two_speeches_none_is_counted(sounddevice):
    device = Device()
    device.open(RATE)
    for ran_dry in (False, True):
        sounddevice.flags.append(ran_dry)
        device.write(tone(0.02))
        device.rest()
    assert device.underruns == 0


@pytest.mark.parametrize(("device", "opened"), [("USB Audio", "USB Audio"), ("2", 2)])
def test_a_device_is_a_name_or_a_number(sounddevice, device, opened):
    sink = player.open_player(Playing(device=device))
    sink.write(tone(0.1), RATE)
    sink.close(whole=True)
    assert sounddevice.asked["device"] == opened


@pytest.mark.parametrize("name", ["USB Audo", "Microphone", "7"])
def test_a_device_that_is_none_is_one_line_with_those_there_are(sounddevice, name):
    with pytest.raises(Failure) as caught:
        player.open_player(Playing(device=name))
    assert caught.value.exit_code == errors.USAGE
    assert repr(name) in str(caught.value)
    assert "did you mean USB Audio?" in str(caught.value) or "there is Loudspeakers, USB Audio" in str(caught.value)


def test_with_no_output_at_all_the_next_player_is_looked_for_and_the_reason_kept(sounddevice):
    sounddevice.DEVICES.clear()
    with pytest.raises(Failure, match=r"no audio player found.*sounddevice has no output device") as caught:
        player.open_player()
    assert caught.value.exit_code == errors.NO_PROGRAM
    with pytest.raises(Failure, match=r"^sounddevice has no output device"):
        player.open_player(Playing(player="sounddevice"))


def test_a_device_that_fails_is_one_line(sounddevice):
    sounddevice.broken = "Invalid sample rate"
    sink = player.open_player()
    with pytest.raises(Failure, match="the audio device failed: Invalid sample rate; use -o") as caught:
        sink.write(tone(0.1), RATE)
        sink.close(whole=True)
    assert caught.value.exit_code == errors.IO_ERROR
    sink.close(whole=False)


def run(*arguments: str):
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_devices_lists_outputs_alone(sounddevice):
    code, shown, _ = run("devices")
    assert code == 0
    assert shown == "*  1  Loudspeakers  (2 channels, 48000 Hz)\n   2  USB Audio  (2 channels, 44100 Hz)\n"
    (first, _) = json.loads(run("devices", "--json")[1])
    assert first == {"number": 1, "name": "Loudspeakers", "channels": 2, "rate_hz": 48000, "default": True}


def test_devices_without_sounddevice_says_where_others_keep_theirs(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    code, shown, said = run("devices")
    assert code == errors.NO_PROGRAM and not shown and "aplay -L" in said and said.count("\n") == 1


def test_devices_with_none_is_one_line(sounddevice):
    sounddevice.DEVICES.clear()
    code, shown, said = run("devices")
    assert code == errors.NO_PROGRAM and not shown and "no output device" in said
    assert run("devices", "--json")[:2] == (0, "[]\n")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--volume", "0.5"], "--volume"),
        (["--player", "sox"], "--player"),
        (["--device", "1"], "--device"),
        (["--lead-in", "9"], "--lead-in"),
        (["--prebuffer", "3"], "--prebuffer"),
        (["--no-prebuffer"], "--prebuffer"),
    ],
)
def test_what_is_for_playing_is_refused_where_nothing_plays(tmp_path, flags, named):
    code, _, said = run("say", "-o", str(tmp_path / "a.wav"), *flags, "Hello")
    assert (code, list(tmp_path.iterdir())) == (errors.USAGE, [])
    assert f"{named} is for playing" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--player", "ffply"], "there is no player 'ffply': did you mean ffplay?"),
        (["--player", "zzz"], "there is auto, sounddevice"),
        (["--volume", "1.1"], "0<=x<=1"),
        (["--volume", "nan"], "nan is not in the range"),
        (["--lead-in", "9999"], "0<=x<=5000"),
        (["--prebuffer", "-1"], "0<=x<=1200"),
    ],
)
def test_a_mistaken_flag_is_one_line(flags, words):
    code, _, said = run("say", *flags, "Hello")
    assert code == errors.USAGE and words in said and said.count("\n") == 1


def test_settings_are_flag_then_variable_then_file_then_default(tmp_path):
    config = tmp_path / "config.toml"
    assert load_playing(config, {}, {}) == Playing()
    config.write_text('player = "sox"\nvolume = 0.5\nlead_in_ms = 300\nmax_rows = 2\n')
    environ = {"MISO_VOLUME": "0.25", "MISO_DEVICE": "hall"}
    assert load_playing(config, {"lead_in_ms": 0.0, "volume": None}, environ) == Playing("sox", "hall", 0.25, 0.0)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('player = "ffply"', "'ffply' is not auto, sounddevice, .* or afplay; did you mean ffplay?"),
        ("volume = 2", "2 is not within 0..1"),
        ('lead_in_ms = "soon"', "'soon' is not a number"),
        ("device = 2", "2 is not text"),
        ("volume =", "Invalid value"),
    ],
)
def test_a_wrong_setting_is_told_with_where_it_is(tmp_path, toml, words):
    (tmp_path / "config.toml").write_text(toml)
    with pytest.raises(ConfigError, match=f"config.toml: .*{words.replace('?', '[?]')}"):
        load_playing(tmp_path / "config.toml", {}, {})


def test_a_wrong_setting_stops_say_before_anything_is_spoken(tmp_path, monkeypatch):
    monkeypatch.setenv("MISO_HOME", str(tmp_path))
    monkeypatch.setenv("MISO_PLAYER", "ffply")
    code, _, said = run("say", "Hello")
    assert code == errors.BAD_CONFIG and "MISO_PLAYER: 'ffply' is not auto" in said and "did you mean ffplay?" in said
    assert not list(tmp_path.iterdir())


def test_the_table_of_players_is_whole():
    from misoctl.playing.choice import TAKE_A_DEVICE
    from misoctl.playing.program import ARGUMENTS

    assert set(PLAYERS) == {"sounddevice", *ARGUMENTS, "afplay"}
    assert set(PLAYERS) - set(TAKE_A_DEVICE) == {"ffplay", "afplay"}
