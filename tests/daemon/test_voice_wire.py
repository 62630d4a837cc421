"""Voices and sessions over the wire, with the real daemon around a fake engine and around nano."""

import json
import random
import time
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from fake_misod import CODEC, FRAME_SAMPLES
from harness import Home, Raw, frames_of, until

from misod import voices
from protocol import messages as m

FRAMES = 25  # 2 s: five pieces of a clip


def clip(frames: int = FRAMES, code: int = 7) -> bytes:
    """The fake engine takes the first sample of each 80 ms for its code."""
    return (np.ones(frames * FRAME_SAMPLES) * code).astype("<i2").tobytes()


def learn_of(request: int, name: str = "anna", **options) -> m.Learn:
    base = {"clip": clip(), "text": "What was said", "speaker": 3, "clip_digest": "a" * 64, "permission": True}
    return m.Learn(**{"id": request, "name": name, "licence": "CC0", "replace": False} | base | options)


def ask(raw: Raw, message: m.Message) -> m.Message:
    """Its answer, once no more `progress` comes."""
    raw.send(message)
    while isinstance(answer := raw.receive(), m.Progress):
        pass
    assert answer.id == message.id
    return answer


def listing(raw: Raw, name: str = "") -> list[dict]:
    return json.loads(ask(raw, m.VoicesRequest(id=900, name=name)).listing)


def files(home: Home) -> list[str]:
    return sorted(path.name for path in (home.path / "voices").glob("*"))


def test_a_voice_is_learned_listed_used_and_forgotten(fake):
    with Raw(fake) as raw:
        (about,) = json.loads(ask(raw, learn_of(1)).listing)
        assert (about["name"], about["seconds"], about["speaker"], about["text"]) == ("anna", 2.0, 3, "What was said")
        assert (about["codec_digest"], about["clip_digest"], about["licence"]) == (CODEC, "a" * 64, "CC0")
        assert listing(raw) == listing(raw, "anna") == [about] and raw.ping().voices == 1
        kept = voices.unpack((fake.path / "voices" / "anna.safetensors").read_bytes())
        assert kept.codes.tolist() == [[7] * FRAMES, [8] * FRAMES] and kept.spoken == "what was said"
        raw.say(2, "two words", voice="anna", speaker=None)
        done = raw.until(m.Done)[-1]
        assert (done.voice, done.voice_digest, done.speaker, done.session) == ("anna", about["digest"], 3, "")
        assert fake.traced("voice anna 25") == 1
        raw.say(3, "two words", voice="anna", speaker=0)
        assert raw.until(m.Done)[-1].speaker == 0
        assert json.loads(ask(raw, m.Forget(id=4, name="anna")).listing) == [about]
        assert (listing(raw), files(fake), raw.ping().voices) == ([], [], 0)
        until(lambda: fake.traced(f"forget {about['digest']}"), "the engine to hear of it")


def test_a_voice_goes_out_and_comes_back_under_any_name(fake):
    with Raw(fake) as raw:
        ask(raw, learn_of(1))
        file = ask(raw, m.Export(id=2, name="anna"))
        assert isinstance(file, m.VoiceFile) and file.name == "anna"
        assert ask(raw, m.Import(id=3, name="", data=file.data, replace=False)).code == "voice_exists"
        assert (
            json.loads(ask(raw, m.Import(id=4, name="bob", data=file.data, replace=False)).listing)[0]["name"] == "bob"
        )
        ask(raw, m.Forget(id=5, name="anna"))
        (about,) = json.loads(ask(raw, m.Import(id=6, name="", data=file.data, replace=False)).listing)
        assert about["name"] == "anna" and ask(raw, m.Export(id=7, name="anna")).data == file.data
        assert ask(raw, m.Import(id=8, name="eve", data=file.data[:-1], replace=False)).code == "bad_voice"
        assert [each["name"] for each in listing(raw)] == ["anna", "bob"]


def test_a_name_that_is_taken_is_refused_before_the_work_and_can_be_replaced(fake):
    with Raw(fake) as raw:
        ask(raw, learn_of(1))
        heard = fake.traced("hear")
        assert ask(raw, learn_of(2)).code == "voice_exists"
        assert fake.traced("hear") == heard
        (about,) = json.loads(ask(raw, learn_of(3, clip=clip(code=9), replace=True)).listing)
        assert about["digest"] == listing(raw)[0]["digest"] and len(listing(raw)) == 1


def test_two_that_learn_one_name_at_once_leave_one_voice(fake):
    with Raw(fake) as raw:
        raw.send(learn_of(1), learn_of(2, clip=clip(code=9)))
        answers = sorted([raw.receive(), raw.receive()], key=lambda x: x.id)
        assert isinstance(answers[0], m.Voices) and answers[1].code == "voice_exists"


@pytest.mark.parametrize("name", ["../x", "a" * 64 + "b", "Anna", "a\0b", "é", ".", "a/b", "-v"], ids=repr)
def test_a_hostile_name_makes_no_file(fake, name):
    data = voices.Voice("x", np.ones((2, 3), np.int16), "", "", 0, CODEC, "a" * 64, voices.now()).pack()
    messages = {"learn": learn_of(1), "forget": m.Forget(id=1, name="x"), "export": m.Export(id=1, name="x")}
    messages["import"] = m.Import(id=1, name="x", data=data, replace=True)
    messages["voices"] = m.VoicesRequest(id=1, name="x")
    messages["say"] = m.Say(id=1, text="two words", speaker=0, voice="x")
    messages["session"] = m.Say(id=1, text="two words", speaker=0, session="x")
    for kind, message in messages.items():
        field = {"say": "voice", "session": "session"}.get(kind, "name")
        body = {"t": message.t} | {each: getattr(message, each) for each in message.limits()} | {field: name}
        with Raw(fake) as raw:
            raw.send_bytes(msgpack.packb(body))
            assert raw.until(m.Error)[-1].code == "bad_value", kind
            raw.ping()
    assert not (fake.path / "voices").exists() and not (fake.path.parent / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"clip": clip() + b"\0"}, "bad_value"),
        ({"clip": clip(), "voice": "anna"}, "bad_value"),
        ({"clip_text": "words"}, "bad_value"),
        ({"voice": "anna"}, "no_voice"),
        ({"clip": clip(), "clip_text": "refuse"}, "unspeakable"),
    ],
    ids=["half a sample", "a clip and a voice", "words without a clip", "no such voice", "unreadable words"],
)
def test_a_say_that_cannot_be_is_refused(fake, options, code):
    with Raw(fake) as raw:
        raw.say(1, "two words", **options)
        assert raw.receive_end().code == code
        raw.say(2, "two words")
        assert raw.receive_end().end == "eos"


@pytest.mark.parametrize(
    ("options", "code"),
    [({"clip": clip() + b"\0"}, "bad_value"), ({"text": "refuse"}, "unspeakable"), ({"model": "none"}, "no_model")],
    ids=["half a sample", "unreadable words", "no such model"],
)
def test_a_learn_that_cannot_be_is_refused_and_leaves_nothing(fake, options, code):
    with Raw(fake) as raw:
        assert ask(raw, learn_of(1, **options)).code == code
        assert files(fake) == [] and raw.ping().queued == 0


def test_a_one_off_is_heard_once_and_kept_nowhere(fake):
    with Raw(fake) as raw:
        digests = set()
        for request in (1, 2):
            raw.say(request, "two words", clip=clip(), clip_text="Hello", speaker=None)
            done = raw.until(m.Done)[-1]
            digests.add(done.voice_digest)
            assert (done.voice, done.speaker) == ("", 0)
        assert len(digests) == 1 and digests != {""}
        assert fake.traced("hear 0") == 1 and fake.traced("voice - 25") == 2
        raw.say(3, "two words", clip=clip(), clip_text="Other words")
        assert raw.until(m.Done)[-1].voice_digest not in digests
        assert files(fake) == []


def test_frames_go_on_while_a_clip_is_heard(fake):
    with Raw(fake) as raw, Raw(fake) as other:
        raw.say(1, "last 100000")
        raw.until(m.Pcm)
        assert isinstance(ask(other, learn_of(1, clip=clip(300))), m.Voices)
        raw.send(m.Cancel(id=1))
        raw.until(m.Done)
    lines = [line.split()[0] for line in fake.trace.read_text().splitlines()]
    first, last = lines.index("hear"), len(lines) - lines[::-1].index("hear")
    between = "".join({"hear": "h", "frame": "f"}[line] for line in lines[first:last])
    assert between.count("h") == 60 and "hh" not in between.rstrip("h")[:30]


def test_a_client_that_leaves_while_its_clip_is_heard_holds_nothing_up(fake):
    with Raw(fake) as raw:
        raw.send(learn_of(1, clip=clip(375)))
        until(lambda: fake.traced("hear"), "it to be heard")
    with Raw(fake) as other:
        other.say(1, "two words")
        assert other.until(m.Done)[-1].end == "eos"
        until(lambda: other.ping().queued == 0, "the other to be over")


def begin_long_learn(raw: Raw, home: Home) -> None:
    raw.send(learn_of(1, clip=clip(375)))
    until(lambda: home.traced("hear"), "it to be heard")


def test_a_learn_that_is_cancelled_or_whose_client_is_gone_learns_nothing(home):
    home.fake({"FAKE_STEP_MS": "60"})
    with Raw(home) as other:
        with Raw(home) as raw:
            begin_long_learn(raw, home)
            raw.send(m.Cancel(id=1))
            assert raw.until(m.Done)[-1].end == "cancelled"
            begin_long_learn(raw, home)
        until(lambda: other.ping().queued == 0 and heard_no_more(home), "it to be given up")
        assert files(home) == []


def heard_no_more(home: Home) -> bool:
    before = home.traced("hear")
    time.sleep(0.3)
    return home.traced("hear") == before


def test_a_voice_forgotten_while_somebody_waits_to_speak_with_it_is_theirs_alone(home):
    home.fake(max_rows=1)
    with Raw(home) as raw:
        ask(raw, learn_of(1))
        raw.say(2, "last 100000")
        raw.until(m.Pcm)
        raw.say(3, "two words", voice="anna")
        raw.send(m.Forget(id=4, name="anna"), m.Cancel(id=2))
        assert raw.until(m.Done, 3)[-1].voice == "anna"
        assert (home.traced("voice - 25"), home.traced("voice anna")) == (1, 0)


def test_a_file_in_the_voices_place_is_told_and_misod_lives(fake):
    (fake.path / "voices").write_text("in its place")
    with Raw(fake) as raw:
        assert ask(raw, learn_of(1)).code == "storage"
        error = ask(raw, m.VoicesRequest(id=900, name=""))
        assert error.code == "storage" and "voices cannot be read" in error.message and raw.ping().voices == 0


@pytest.mark.parametrize(("drain_s", "answer"), [(30, m.Voices), (0, m.Error)])
def test_a_drain_lets_a_clip_be_learned_or_says_why_not(home, drain_s, answer):
    daemon = home.fake({"FAKE_STEP_MS": "30"}, drain_s=drain_s)
    with Raw(home) as raw:
        raw.send(learn_of(1, clip=clip(250)))
        until(lambda: home.traced("hear"), "it to be heard")
        raw.send(m.Drain(id=2))
        assert isinstance(got := raw.until(answer)[-1], answer)
        assert answer is m.Voices or got.code == "draining"
    assert until(lambda: daemon.poll() is not None, "misod to exit") and daemon.returncode == 0
    assert files(home) == (["anna.safetensors"] if answer is m.Voices else [])


def test_a_learn_has_the_model_loaded(fake):
    with Raw(fake) as raw:
        ask(raw, m.Unload(id=1))
        assert isinstance(ask(raw, learn_of(2)), m.Voices) and raw.ping().state == "ready"


def test_a_damaged_voice_is_listed_with_its_problem(fake):
    with Raw(fake) as raw:
        ask(raw, learn_of(1))
        (fake.path / "voices" / "bob.safetensors").write_bytes(b"hello")
        assert [each.get("problem", "") != "" for each in listing(raw)] == [False, True]
        raw.say(2, "two words", voice="bob")
        assert raw.receive_end().code == "bad_voice"
        ask(raw, m.Forget(id=3, name="bob"))
        assert files(fake) == ["anna.safetensors"]


def kill_while_learning(home: Home, cycles: int) -> int:
    """How many of those that were cut short had been kept by then."""
    rng, learned = random.Random(1), 0
    for cycle in range(cycles):
        daemon = home.fake()
        whole = set(files(home))
        assert all(not name.startswith(".") for name in whole), whole
        with Raw(home) as raw:
            began_s = time.monotonic()
            ask(raw, learn_of(1, f"whole{cycle}"))
            took_s = time.monotonic() - began_s
            raw.send(learn_of(2, f"cut{cycle}"))
            time.sleep(rng.uniform(0, 1.2 * took_s))
            daemon.kill()
            daemon.wait()
        shown = {name for name in files(home) if not name.startswith(".")}
        assert shown - whole in ({f"whole{cycle}.safetensors"}, {f"{x}{cycle}.safetensors" for x in ("whole", "cut")})
        learned += f"cut{cycle}.safetensors" in shown
        for name in shown:
            voices.unpack((home.path / "voices" / name).read_bytes())
    home.fake()
    assert all(not name.startswith(".") for name in files(home))
    return learned


def test_killed_at_any_point_it_leaves_no_half_voice(home):
    kill_while_learning(home, 6)


@pytest.mark.slow
def test_killed_three_hundred_times_it_leaves_no_half_voice(home):
    assert 30 < kill_while_learning(home, 300) < 270  # the kills were around the moment


# ---- sessions


def say_in(raw: Raw, request: int, text: str = "two words", session: str = "chat", **options) -> m.Done:
    raw.say(request, text, session=session, **options)
    return raw.until(m.Done, request)[-1]


def sessions(raw: Raw) -> list[dict]:
    return json.loads(ask(raw, m.SessionsRequest(id=901)).listing)


def test_what_was_said_to_its_end_is_what_follows_follow(fake):
    with Raw(fake) as raw:
        assert say_in(raw, 1).session == "chat"
        say_in(raw, 2)
        raw.say(3, "last 100000", session="chat")
        raw.until(m.Pcm)
        raw.send(m.Cancel(id=3))
        assert raw.until(m.Done)[-1].end == "cancelled"
        say_in(raw, 4)
        say_in(raw, 5, session="other")
        traced = [line for line in fake.trace.read_text().splitlines() if line.startswith("after")]
        assert traced == [f"after {turns} turns" for turns in (0, 1, 2, 2, 0)]
        chat, other = sessions(raw)
        assert (chat["name"], chat["turns"], chat["seconds"], chat["model"]) == ("chat", 3, 12 * 0.08, "nano")
        assert other["name"] == "other" and raw.ping().sessions == 2


def test_a_session_outlives_the_model_and_is_forgotten_when_asked(fake):
    with Raw(fake) as raw:
        for name in ("a", "b", "c"):
            say_in(raw, 1, session=name)
        ask(raw, m.Unload(id=2))
        assert [each["name"] for each in sessions(raw)] == ["a", "b", "c"]
        left = ask(raw, m.ForgetSession(id=3, name="b"))
        assert [each["name"] for each in json.loads(left.listing)] == ["a", "c"]
        assert ask(raw, m.ForgetSession(id=4, name="b")).code == "no_session"
        assert json.loads(ask(raw, m.ForgetSession(id=5, name="")).listing) == []


def test_what_the_model_kept_of_a_session_goes_with_it(fake):
    with Raw(fake) as raw:
        say_in(raw, 1, "first words")
        say_in(raw, 2, "other words")
        until(lambda: fake.traced("forget of first words"), "the first to be replaced")
        assert not fake.traced("forget of other words")
        ask(raw, m.ForgetSession(id=3, name="chat"))
        until(lambda: fake.traced("forget of other words"), "it to go")


# ---- nano


def test_a_voice_of_nano_is_read_once_also_over_a_restart(home):
    first = home.nano()
    with Raw(home) as raw:
        raw.say(1, "The weather in London is cold and wet.")
        pcm = b"".join(x.data for x in frames_of(raw.until(m.Done, ack=True)))
        text = "The weather in London is cold and wet."
        learned = ask(raw, learn_of(2, clip=pcm, text=text, speaker=1))
        (about,) = json.loads(learned.listing)
        said = [say_with(raw, request) for request in (3, 4)]
        status = raw.ping()
        assert (status.prefix_hits, status.prefix_misses, status.voices) == (2, 0, 1)  # it was read as it was learned
        assert 0 < status.prefix_bytes < status.prefix_limit_bytes
    first.kill()
    first.wait()
    home.nano()
    with Raw(home) as raw:
        said.append(say_with(raw, 5))
        assert (raw.ping().prefix_hits, raw.ping().prefix_misses) == (1, 0)
        assert len(set(said)) == 1
        assert len(list((home.path / "prefixes").iterdir())) == 1
        assert about == json.loads(ask(raw, m.Forget(id=6, name="anna")).listing)[0]
        assert not list((home.path / "prefixes").iterdir())
        until(lambda: raw.ping().prefix_bytes == 0, "memory to be freed")


def say_with(raw: Raw, request: int) -> bytes:
    raw.say(request, "Hello from Miso.", voice="anna", speaker=None)
    got = raw.until(m.Done, request, ack=True)
    assert (got[-1].end, got[-1].speaker) == ("eos", 1)
    return b"".join(x.data for x in frames_of(got, request))


def test_a_speaker_of_a_voice_that_nano_has_not_is_named(nano):
    with Raw(nano) as raw:
        error = ask(raw, learn_of(1, "eve", clip=b"\1\0" * 24000))
        assert error.code == "bad_value" and "not 3" in error.message and files(nano) == []
        ask(raw, learn_of(2, clip=b"\1\0" * 24000, speaker=0))
        voice = replace(voices.unpack(ask(raw, m.Export(id=3, name="anna")).data), name="eve", speaker=3)
        ask(raw, m.Import(id=4, name="", data=voice.pack(), replace=False))
        raw.say(5, "Hello.", voice="eve", speaker=None)
        error = raw.receive_end()
        assert error.code == "bad_value" and "not 3" in error.message
