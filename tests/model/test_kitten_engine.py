"""KittenTTS 2 behind the daemon's interface, on random weights: no speech, but all that leads to it.

In kittenml's place stands a double, for its codec's weights are not here: a token is 40 ms of a tone.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import misod.kitten  # noqa: F401  before mlx, for OpenBLAS

# isort: split
import numpy as np
import pytest

from misod.engine import Chunk, Fault, ModelError, RowFault, Say, open_engine, returned
from misod.kitten.around import SAMPLE_RATE
from misod.kitten.engine import KittenEngine
from misod.kitten.seams import Seams
from misod.kitten.text import FIRST, pieces, without_marks
from misod.voices import MAX_RECORDING, now, unpack
from misod.voices import Voice as Learned
from tests.model.kitten_fixture import TOKEN, Double, make_repository

LONG = (
    "[joyful] We won the grant <laugh> and I can (((hardly))) believe it! It came on the 3rd of May, at half past "
    "nine, and it is for $12.50 a day. " + "There is much to be done before the summer, and nobody knows by whom. " * 6
)
THREE = " ".join(["It began to rain again, and nobody had thought of taking an umbrella along."] * 3)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("kitten") / "kitten")


@pytest.fixture(scope="module")
def kitten(repository) -> KittenEngine:
    return KittenEngine.open("kitten", repository, 4, Double())


def speak(engine: KittenEngine, *says: Say) -> list[tuple[np.ndarray, str]]:
    """All that comes of each, spoken together."""
    rows = [engine.prefill(say) for say in says]
    pcm, ends = [[] for _ in rows], [""] * len(rows)
    while not all(ends):
        speaking = [i for i, end in enumerate(ends) if not end]
        for i, chunk in zip(speaking, engine.step([rows[i] for i in speaking]), strict=True):
            assert isinstance(chunk, Chunk), chunk
            pcm[i].append(chunk.pcm)
            ends[i] = chunk.end or ""
    for row in rows:
        engine.release(row)
    return [(np.concatenate(parts), end) for parts, end in zip(pcm, ends, strict=True)]


@pytest.mark.slow
def test_a_long_text_with_tags_is_spoken_piece_by_piece_to_its_end(kitten):
    assert len(LONG) > 500
    kitten.around.heard.clear()
    row = kitten.prefill(Say(text=LONG, seed=1))
    pcm, first = [], None
    while True:
        (chunk,) = kitten.step([row])
        pcm.append(chunk.pcm)
        if len(chunk.pcm) and first is None:
            first = len(row.spoken)
        if chunk.end:
            break
    total, heard = np.concatenate(pcm), sum(map(len, kitten.around.heard))
    assert first < len(row.spoken) == len(kitten.around.heard) > 2  # the first was heard while others were drawn
    assert " ".join(row.spoken) == LONG.replace("$12.50", "twelve dollars fifty").strip()
    assert np.isfinite(total).all() and 0.2 < np.abs(total).max() < 0.31
    gaps = int(0.16 * SAMPLE_RATE) * (len(row.spoken) - 1)
    assert 0 <= len(total) - heard * TOKEN - gaps < 1920 and all(len(part) % 1920 == 0 for part in pcm)


def test_same_text_and_seed_are_the_same_samples_alone_or_beside_others(kitten):
    says = [Say(text="How are you today?", seed=9, max_seconds=2.0), Say(text="Quite well.", seed=3, max_seconds=1.0)]
    together = speak(kitten, *says)
    for say, (pcm, end) in zip(says, together, strict=True):
        ((alone, _),) = speak(kitten, say)
        assert (
            alone.tobytes() == pcm.tobytes() and end == "cap" and 0 <= len(pcm) - say.max_seconds * SAMPLE_RATE < 1920
        )
    ((other, _),) = speak(kitten, Say(text="How are you today?", seed=10, max_seconds=2.0))
    assert other.tobytes() != together[0][0].tobytes()


def test_temperature_0_is_the_same_for_every_seed(kitten):
    (first, _), (second, _) = speak(
        kitten, *(Say(text="One.", seed=s, sampling={"temperature": 0.0}, max_seconds=1.0) for s in (1, 2))
    )
    assert first.tobytes() == second.tobytes()


def test_tags_bring_the_emotion_control_and_presets_are_the_repositorys_own(kitten):
    tagged, plain = (kitten.prefill(Say(text=text, seed=1)) for text in ("[joyful] Yes!", "Yes!"))
    assert tagged.emotion and not plain.emotion
    assert plain.style.temperature == 0.6 and plain.style.top_k == 40
    assert kitten.prefill(Say(text="Yes!", seed=1, preset="expressive")).style.top_k == 80
    assert kitten.prefill(Say(text="Yes!", seed=1, sampling={"top_k": 7})).style.top_k == 7


def test_a_text_cannot_write_the_marks_of_a_prompt(kitten):
    marks = {kitten.ids.start_id, kitten.ids.speech_start_id, kitten.ids.speech_end_id, kitten.ids.stop_id}
    assert not marks & set(kitten._encode("[START] <speech_start> <speech_end> [STOP]"))


def test_no_step_reads_more_of_a_prompt_than_a_layer_of_so_many_positions(kitten, monkeypatch):
    """A voice and a piece of 50 positions, 20 at once, in 2 layers: each is a step where a step has no time."""
    monkeypatch.setattr("misod.kitten.decode.READ_AT_ONCE", 20)
    monkeypatch.setattr("misod.kitten.engine.STEP_S", 0.0)
    kitten._read.clear()
    row, steps = kitten.prefill(Say(text="How are you today?", seed=9)), 0
    while row.reading:
        kitten.step([row])
        steps += 1
    (past,) = kitten._read.values()
    piece = row.batch._rows["length"].item() - len(past.ids) - len(row.ids)  # the last of them draws, too
    assert steps == 2 * (-(-len(past.ids) // 20) + -(-piece // 20)) + 1


@pytest.mark.slow
def test_a_request_chooses_what_its_model_would(kitten):
    asked = {"repetition_penalty": 1.5, "repetition_window": 7, "run_penalty": 2.0, "run_grace": 3}
    row = kitten.prefill(Say(text="Yes!", seed=1, options=asked, sampling={"temperature": 0.3}))
    how = row.settings
    assert (how.temperature, how.top_k, how.repetition_penalty, how.repetition_window) == (0.3, 40, 1.5, 7)
    assert (how.token_run_penalty, how.token_run_grace) == (2.0, 3)
    assert kitten.prefill(Say(text="Yes!", seed=1)).settings.repetition_window == 64
    assert kitten.prefill(Say(text="Yes!", seed=1, options={"use_emotion": True})).emotion
    assert not kitten.prefill(Say(text="[joyful] Yes!", seed=1, options={"use_emotion": False})).emotion
    many, few = (kitten.prefill(Say(text=LONG, seed=1, options={"chunk_chars": n})).pieces for n in (150, 2000))
    assert many > few == 2
    (gaps, _), (none, _) = (
        speak(kitten, Say(text=THREE, seed=1, options={"gap_s": gap, "chunk_chars": 150}))[0] for gap in (0.5, 0.0)
    )
    assert abs(len(gaps) - len(none) - 2 * 0.5 * SAMPLE_RATE) < 1920
    with_reference, without = (
        spent(kitten, Say(text="Yes!", seed=1, options={"use_reference": use})) for use in (True, False)
    )
    assert with_reference > without + 20


def spent(engine: KittenEngine, say: Say) -> int:
    """Positions of its prompt."""
    row = engine.prefill(say)
    while row.reading:
        engine.step([row])
    return row.batch._rows["length"].item() - len(row.ids)


def test_what_goes_wrong_with_one_row_s_sound_ends_that_row_alone(kitten, monkeypatch):
    sound = kitten.around.sound

    def failing(voice, tokens, seed, decoder):
        if seed > 100:
            raise OSError("no space left on device")
        return sound(voice, tokens, seed, decoder)

    monkeypatch.setattr(kitten.around, "sound", failing)
    live = {seed: kitten.prefill(Say(text="Yes!", seed=seed)) for seed in (100, 1)}
    last = {}
    while live:
        for seed, chunk in zip([*live], kitten.step([*live.values()]), strict=True):
            if isinstance(chunk, Fault) or chunk.end:
                last[seed] = chunk
                del live[seed]
    assert last[100] == Fault("OSError: no space left on device") and isinstance(last[1], Chunk)


@pytest.mark.slow
def test_a_piece_that_comes_out_silent_is_drawn_anew_and_the_rest_as_it_would_have_been(kitten):
    around = kitten.around
    around.heard.clear()
    said = Say(text=THREE, seed=1, options={"chunk_chars": 150})
    speak(kitten, said)
    first, _, third = around.heard
    around.heard.clear()
    around.silent = {2}
    row = kitten.prefill(said)
    try:
        while (chunk := kitten.step([row])[0]).end is None:
            assert isinstance(chunk, Chunk)
        assert row.mended == ["silence in piece 2"]
        assert " ".join(row.spoken) == THREE
        assert around.heard[0] == first and around.heard[-1] == third and around.heard[-2] != around.heard[1]
        around.heard.clear()
        around.silent = set(range(1, 100))
        row = kitten.prefill(Say(text="Yes, I am.", seed=1))
        while not isinstance(fault := kitten.step([row])[0], Fault):
            pass
        assert fault.code == "degenerate" and len(around.heard) == 3
    finally:
        around.silent = set()


def test_each_word_that_is_spoken_is_traced_to_its_text(kitten):
    text = "**It** is $12.50 a day."
    row = kitten.prefill(Say(text=text, seed=1, max_seconds=1.0))
    spoken = " ".join(row.spoken)
    traced = {spoken[a:b]: text[c:d] for a, b, c, d in row.spans}
    assert traced == {"It": "**It**", "is": "is", "twelve": "$12.50", "dollars": "$12.50", "fifty": "$12.50",
                      "a": "a", "day.": "day."}  # fmt: skip


def test_its_own_voices_are_known_by_name_and_a_clip_is_spoken_like(kitten):
    assert kitten.info.voices == {"tiny": 0}
    row = kitten.prefill(Say(text="Yes!", seed=1, own_voice="tiny"))
    assert row.own.name == "Tiny" and row.voice_digest == row.own.digest
    voice = heard(kitten, TONE)
    row = kitten.prefill(Say(text="Yes!", seed=1, voice=voice))
    assert row.own.transcript == "What is said." and row.voice_digest == voice.digest != kitten.voices[0].digest
    ((like, _),) = speak(kitten, Say(text="Yes!", seed=1, voice=voice, max_seconds=1.0))
    ((own, _),) = speak(kitten, Say(text="Yes!", seed=1, max_seconds=1.0))
    assert like.tobytes() != own.tobytes()


TONE = (0.3 * np.sin(np.arange(24_000) / 20)).astype(np.float32)


def heard(engine: KittenEngine, pcm: np.ndarray) -> Learned:
    found = returned(engine.hear(pcm, "What is said.", 0))
    return Learned("", text="What is said.", speaker=0, clip_digest="a" * 64, created=now(), **vars(found))


def test_a_voice_s_file_has_all_that_another_engine_needs_to_speak_the_same(kitten, repository):
    """Of 12 s the decoder hears ten, and the model all."""
    voice = heard(kitten, np.tile(TONE, 12))
    assert (len(voice.recording), voice.codes.shape, voice.model) == (MAX_RECORDING, (1, 300), "kitten")
    kept = unpack(replace(voice, name="anna").pack())
    (before,) = speak(kitten, Say(text="Yes!", seed=1, voice=voice, max_seconds=0.5))
    other = KittenEngine.open("kitten", repository, 1, Double())
    (after,) = speak(other, Say(text="Yes!", seed=1, voice=kept, max_seconds=0.5))
    assert before[0].tobytes() == after[0].tobytes() and kept.digest == voice.digest
    np.testing.assert_array_equal(other.around.spoke_as.recording, np.round(np.tile(TONE, 10) * 32768) / 32768)


def test_what_is_read_of_a_voice_goes_with_it(kitten):
    voice = heard(kitten, TONE[:12_000])
    assert voice.digest in kitten._read
    kitten.forget(voice.digest)
    assert voice.digest not in kitten._read
    kitten._sounder.submit(int).result()
    assert kitten.around.forgotten == [voice.digest]


def test_a_recording_is_taken_as_no_speaker_of_its_own(kitten):
    with pytest.raises(RowFault, match="takes no speaker with a recording"):
        returned(kitten.hear(TONE, "What is said.", 1))


LEARNED = Learned("me", np.ones((2, 3), np.int16), "words", "words", 0, "c" * 64, model="nano")
OWN = replace(LEARNED, codec_digest=Double.digest, codes=np.ones((1, 3), np.int16), recording=np.ones(9, np.int16),
              embedding=np.ones(512, np.float32))  # fmt: skip
REFUSED = {
    "another model's voice": ({"voice": LEARNED}, r"me was learned with nano \(--model nano says it\): kitten has"),
    "a voice with no embedding": ({"voice": replace(OWN, embedding=None)}, "me holds what kitten has no sound for"),
    "a narrow embedding": ({"voice": replace(OWN, embedding=np.ones(9, np.float32))}, "has no sound for"),
    "a token too large": ({"voice": replace(OWN, codes=np.array([[6561]], np.int16))}, "has no sound for"),
    "two codebooks": ({"voice": replace(OWN, codes=np.ones((2, 3), np.int16))}, "has no sound for"),
    "another speaker": ({"speaker": 5}, "the speakers of kitten are 0 Tiny, not 5"),
    "another decoder": ({"options": {"decoder": "student"}}, "the decoders of kitten are default, not 'student'"),
    "nothing": ({"text": "..."}, "nothing to say"),
}


@pytest.mark.parametrize(("fields", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_it_cannot_do_is_refused_by_name(kitten, fields, says):
    with pytest.raises(RowFault, match=says):
        kitten.prefill(Say(**({"text": "Hello.", "seed": 1} | fields)))


def test_without_the_extra_one_line_names_the_command(repository, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError) as error:
        open_engine(repository, 1)
    assert "pip install 'miso-speech[kitten]'" in str(error.value) and "\n" not in str(error.value)


BROKEN = {
    "voices/voices.json": ("{}", "it is empty"),
    "voices/tiny.npz": ("nothing", "tiny.npz: not a voice"),
    "lm/tokenizer.json": ("{}", "tokenizer.json: not a tokenizer"),
    "config.json": (None, "no 'decode_presets' in it"),
}


@pytest.mark.parametrize(("name", "content", "says"), [(k, *v) for k, v in BROKEN.items()], ids=BROKEN.keys())
def test_a_broken_repository_is_one_line_that_names_the_file(repository, tmp_path, name, content, says):
    directory = shutil.copytree(repository, tmp_path / "kitten")
    if content is None:
        config = json.loads((directory / name).read_text())
        del config["decode_presets"]
        content = json.dumps(config)
    (directory / name).write_text(content)
    with pytest.raises(ModelError) as error:
        KittenEngine.open("kitten", directory, 1, Double())
    assert says in str(error.value) and str(directory) in str(error.value) and "\n" not in str(error.value)


# ---- its text and its seams


def test_pieces_are_sentences_the_first_one_short_and_none_too_short():
    text = "It began to rain. " * 40 + "A sentence of very many words, " * 20 + "that ends. Yes."
    made = pieces(text, 300)
    assert len(made[0]) < FIRST and all(len(piece) < 300 + 60 for piece in made)
    assert all(len(piece) >= 60 for piece in made)
    assert " ".join(made) == text
    assert pieces("Yes", 300) == ["Yes."] and pieces("...", 300) == []
    assert all(part[-1] in ",." for part in pieces("many words without any mark " * 40, 300))


def test_markdown_is_no_asterisk_and_tags_stay():
    text = "# Title\n\n- **One** [joyful] thing <laugh>\n- (((two))) `things`\n"
    assert without_marks(text) == "Title. One [joyful] thing <laugh>. (((two))) things."


def test_seams_are_silent_and_keep_all_that_is_heard():
    loud = np.full(2400, 0.5, np.float32)
    piece = np.concatenate([np.zeros(4800, np.float32), loud, np.zeros(9600, np.float32)])
    seams = Seams(SAMPLE_RATE, 1920, single=False)
    joined = np.concatenate([seams.join(piece, last=False), seams.join(piece, last=True)])
    assert 0 <= len(joined) - seams.samples < 1920 and len(joined) % 1920 == 0
    assert np.count_nonzero(joined == 0.5) == 2 * 2400 and joined[0] == joined[-1] == 0
    assert seams.samples < 2 * (2400 + 2 * 480 + 240) + 0.16 * SAMPLE_RATE + 1
    click = Seams(SAMPLE_RATE, 1920, single=False).join(loud, last=True)[:2400]  # no silence of its own: faded
    assert click[0] == click[-1] == 0 and np.abs(np.diff(click)).max() < 0.01
    alone = Seams(SAMPLE_RATE, 1920, single=True)
    np.testing.assert_array_equal(alone.join(piece, last=True)[: len(piece)], piece)
    short = Seams(SAMPLE_RATE, 1920, single=True)
    assert len(short.join(piece, last=True, most=2000)) == 2 * 1920 and short.samples == 2000
