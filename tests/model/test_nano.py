"""The bundled voice through the engine's own interface: what the daemon relies on, on real speech."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from misod.engine import Chunk, Fault, ModelError, RowFault, Say, model_directory, open_engine
from misod.miso.engine import TAIL_FRAMES, MisoEngine
from misod.weights.manifest import describe, write_manifest
from misod.weights.models import bundled

FRAME = 1920


@pytest.fixture(scope="module")
def nano() -> MisoEngine:
    return open_engine(bundled(), max_rows=4)


def speak(engine: MisoEngine, **say) -> tuple[np.ndarray, str]:
    """All PCM of one request, and its end."""
    row = engine.prefill(Say(**({"seed": 1} | say)))
    pcm = []
    while True:
        (chunk,) = engine.step([row])
        assert isinstance(chunk, Chunk), chunk
        pcm.append(chunk.pcm)
        if chunk.end:
            engine.release(row)
            return np.concatenate(pcm), chunk.end


def test_a_sentence_is_spoken_to_its_end_in_whole_frames_of_real_sound(nano):
    pcm, end = speak(nano, text="The weather in London is cold and wet.")
    assert end == "eos" and pcm.dtype == np.float32 and pcm.size % FRAME == 0
    assert 1.0 < pcm.size / nano.sample_rate < 6.0
    assert np.isfinite(pcm).all() and 0.02 < np.sqrt((pcm**2).mean()) < 0.5


def test_same_text_and_seed_are_the_same_samples_first_second_and_after_a_cancelled_row(nano):
    first, _ = speak(nano, text="How are you today?", seed=9)
    cancelled = nano.prefill(Say(text="Something else entirely.", seed=3))
    nano.step([cancelled])
    nano.release(cancelled)
    again, _ = speak(nano, text="How are you today?", seed=9)
    other, _ = speak(nano, text="How are you today?", seed=10)
    assert first.tobytes() == again.tobytes() and first.tobytes() != other.tobytes()


def test_rows_that_join_and_leave_at_any_frame_say_at_temperature_0_what_they_say_alone(nano):
    texts = ["Hello from Miso.", "Call me.", "Music is on."]
    alone = [speak(nano, text=t, sampling={"temperature": 0.0})[0] for t in texts]
    rows, pcm = {}, [[], [], []]
    for step in range(200):
        if step % 3 == 0 and step // 3 < 3:
            rows[step // 3] = nano.prefill(Say(text=texts[step // 3], seed=1, sampling={"temperature": 0.0}))
        for i, chunk in zip(list(rows), nano.step(list(rows.values())), strict=True):
            pcm[i].append(chunk.pcm)
            if chunk.end:
                nano.release(rows.pop(i))
        if not rows:
            break
    for ours, theirs in zip(alone, pcm, strict=True):
        joined = np.concatenate(theirs)
        assert joined.size == ours.size
        np.testing.assert_allclose(joined, ours, rtol=0, atol=2e-4)


def test_a_text_of_several_sentences_is_read_piece_by_piece_and_wholly(nano):
    row = nano.prefill(Say(text="Dr. Smith has 2 dogs. They bark! Why?", seed=2))
    assert row.spoken == ["doctor Smith has two dogs."], "the rest is read when its turn comes"
    ends = []
    while not ends:
        (chunk,) = nano.step([row])
        ends = [chunk.end] if chunk.end else []
    assert row.spoken == ["doctor Smith has two dogs.", "They bark!", "Why?"] and ends == ["eos"]


def test_max_seconds_ends_the_utterance_at_that_frame(nano):
    pcm, end = speak(nano, text="One, two, three, four, five, six, seven, eight.", max_seconds=0.5)
    assert end == "cap" and pcm.size == 6 * FRAME


def test_speech_that_does_not_end_is_cut_at_the_slowest_speakers_pace(nano):
    row = nano.prefill(Say(text="Hello from Miso.", seed=1))
    assert row.piece_end == pytest.approx((3 / 1.1 + 3) * 12.5, abs=1)
    row.piece_end = 4
    ends = [nano.step([row])[0].end for _ in range(4)]
    assert ends == [None, None, None, "cap"] and row.frames == 4 + TAIL_FRAMES


def test_a_prompt_and_its_frames_stay_within_the_context(nano, monkeypatch):
    def rows(count: int):
        shape = count, nano.model.args.audio_num_codebooks + 1
        tokens = np.zeros(shape, np.int32), np.ones(shape, bool)
        return lambda context, speaker, text: tokens

    assert nano.model.args.backbone.max_seq_len == 2048
    small = replace(nano.model.args, backbone=replace(nano.model.args.backbone, max_seq_len=40))
    monkeypatch.setattr(nano.model, "args", small)
    monkeypatch.setattr(nano.prompt, "build", rows(40))
    with pytest.raises(RowFault, match="40 tokens"):
        nano.prefill(Say(text="Hello.", seed=1))
    monkeypatch.setattr(nano.prompt, "build", rows(38))
    row = nano.prefill(Say(text="Hello from Miso, this is a longer text.", seed=1))
    assert row.piece_end == 2 and row.cache.offset == 38


def test_a_row_whose_numbers_break_faults_alone(nano):
    good, bad = (nano.prefill(Say(text="Music is on.", seed=s)) for s in (1, 2))
    nano._draw([bad], mx.full((1, nano.model.args.backbone.embed_dim), float("nan")))
    results = nano.step([bad, good])
    assert isinstance(results[0], Fault) and "not finite" in results[0].message
    assert isinstance(results[1], Chunk) and results[1].pcm.size == FRAME


def test_an_end_at_the_very_first_frame_is_a_fault_and_not_silence(nano):
    row = nano.prefill(Say(text="Hello.", seed=1))
    row.frame = mx.zeros((1, nano.model.args.audio_num_codebooks), mx.int32), mx.array([True])
    (result,) = nano.step([row])
    assert isinstance(result, Fault) and "before it made a sound" in result.message


@pytest.mark.parametrize("text", ["你好。", "Привет"])
def test_letters_the_voice_was_not_taught_are_a_fault_that_says_so(nano, text):
    with pytest.raises(RowFault, match="no letters"):
        nano.prefill(Say(text=text, seed=1))


def test_a_speaker_the_model_lacks_is_a_fault_that_names_those_it_has(nano):
    with pytest.raises(RowFault, match="speakers of nano are 0"):
        nano.prefill(Say(text="Hello.", seed=1, speaker=50))


def test_a_released_row_gives_its_memory_back(nano):
    def held() -> int:
        speak(nano, text="Hello.")
        mx.synchronize()
        return nano.memory().active_bytes

    base = held()
    assert [held() for _ in range(3)] == [base] * 3


def copy_of_nano(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled(), tmp_path / "models" / "mine"))


def test_a_model_under_the_home_opens_by_its_name(tmp_path):
    copy_of_nano(tmp_path)
    engine = open_engine(tmp_path / "models" / "mine", max_rows=1)
    assert engine.info.model == "mine" and engine.info.digest == open_engine(bundled(), 1).info.digest
    engine.close()


def test_a_name_is_a_directory_under_the_home_or_the_bundled_voice(tmp_path):
    models = copy_of_nano(tmp_path).parent
    assert model_directory("mine", models) == models / "mine"
    assert model_directory("auto", models) == model_directory("nano", models) == bundled()
    (models / "mine").rename(models / "miso")
    assert model_directory("auto", models) == models / "miso"
    with pytest.raises(ModelError, match="no model named 'yours'") as error:
        model_directory("yours", models)
    assert error.value.code == "no_model"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "codec/model.safetensors", "tokenizer.json", "codec/config.json"]
)
@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_a_broken_file_is_one_error_that_names_it(tmp_path, name, how):
    path = copy_of_nano(tmp_path) / name
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ModelError) as error:
        open_engine(tmp_path / "models" / "mine", max_rows=1)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("config", ["not json", "{}", json.dumps({"backbone": 3})])
def test_a_config_that_says_too_little_is_one_error_that_names_it(tmp_path, config):
    path = copy_of_nano(tmp_path) / "config.json"
    path.write_text(config)
    with pytest.raises(ModelError) as error:
        open_engine(tmp_path / "models" / "mine", max_rows=1)
    assert str(path) in str(error.value)


def test_a_sentence_follows_the_one_before_it_and_the_oldest_leave(nano, monkeypatch):
    """Only the EOS frame and the new text are read while all of the past fits; the receipt counts what left."""
    monkeypatch.setattr(nano, "speech", replace(nano.speech, segments=2))
    read = []
    embed = nano.model.embed_prompt
    monkeypatch.setattr(nano.model, "embed_prompt", lambda t, m: (read.append(t.shape[0]), embed(t, m))[1])
    row = nano.prefill(Say(text="One. Two. Three. Four.", seed=1))
    alone = [nano.prompt.length([], 0, piece) for piece in ("One.", "Two.", "Three.", "Four.")]
    end = None
    while not end:
        end = nano.step([row])[0].end
    assert read[:3] == [alone[0], 1 + alone[1], 1 + alone[2]]
    assert row.dropped == 1 and [segment.text for segment in row.context] == ["Two.", "Three."]
    assert read[3] == nano.prompt.length(row.context, 0, "Four.")
    assert sum(segment.codes.shape[1] for segment in row.context) < row.frames


def test_a_text_longer_than_the_context_is_spoken_to_its_end(nano, monkeypatch):
    small = replace(nano.model.args, backbone=replace(nano.model.args.backbone, max_seq_len=160))
    monkeypatch.setattr(nano.model, "args", small)
    monkeypatch.setattr(nano, "speech", replace(nano.speech, segments=64))
    row = nano.prefill(Say(text="The cat sat. " * 6, seed=1))
    end = None
    while not end:
        end = nano.step([row])[0].end
        assert row.cache.offset <= 160
    assert end == "eos" and len(row.spoken) == 6 and row.dropped > 0


def test_it_does_not_end_before_the_fastest_speaker_would(nano):
    """EOS is the likeliest from the first frame on: it comes when the floor is reached, and not before."""
    row = nano.prefill(Say(text="One two three four five six seven eight nine ten.", seed=1))
    frame = nano.model.frame

    def ends(last_h, draw, depth):
        def rigged(codebook, logits):
            return draw(codebook, mx.where(mx.arange(logits.shape[1]) == 0, 1e4, logits))

        return frame(last_h, rigged, depth)

    floor = row.piece_floor
    assert floor == int(10 / nano.speech.pace.fastest * 12.5)
    row.frame = None
    nano.model.frame, end = ends, None
    try:
        nano._draw([row], mx.zeros((1, nano.model.args.backbone.embed_dim)))
        while not end:
            end = nano.step([row])[0].end
    finally:
        del nano.model.frame
    assert end == "eos" and row.frames == floor + TAIL_FRAMES


def test_a_guided_row_and_one_that_is_not_are_drawn_in_one_pass(nano, monkeypatch):
    plain, _ = speak(nano, text="Music is on.", sampling={"temperature": 0.0})
    passes = []
    read = nano.model.read
    monkeypatch.setattr(nano.model, "read", lambda x, cache: (passes.append(x.shape), read(x, cache))[1])
    rows = [nano.prefill(Say(text="Music is on.", seed=1, sampling=s)) for s in ({"temperature": 0.0}, GUIDED)]
    passes.clear()
    pcm, done = [], {}
    while len(done) < 2:
        live = [row for row in rows if id(row) not in done]
        for row, chunk in zip(live, nano.step(live), strict=True):
            if row is rows[0]:
                pcm.append(chunk.pcm)
            if chunk.end:
                done[id(row)] = chunk.end
    assert passes[0][0] == 3 and set(done.values()) == {"eos"}  # two rows and a shadow
    np.testing.assert_allclose(np.concatenate(pcm), plain, rtol=0, atol=2e-4)


GUIDED = {"temperature": 0.0, "guidance": 1.2}


@pytest.mark.parametrize(
    "change",
    [{"speakers": 0}, {"text": {"max_words": 0}}, {"backbone": {"max_seq_len": 8}}],
    ids=["speakers", "words", "context"],
)
def test_a_model_that_could_say_nothing_is_refused_and_kills_nobody(tmp_path, change):
    directory = copy_of_nano(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    for name, value in change.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    (directory / "config.json").write_text(json.dumps(config))
    write_manifest(directory, describe(directory, "mine", "q8", {}, "a test"))
    with pytest.raises(ModelError, match=str(directory)):
        open_engine(directory, max_rows=1)


def test_a_cap_within_a_pause_ends_there_and_names_no_sentence_that_was_not_spoken(nano):
    text = "Yes, it is.\n\nNo, it is not."
    whole = nano.prefill(Say(text=text, seed=3))
    while len(whole.spoken) == 1:
        nano.step([whole])
    pause_ends = whole.frames  # the second sentence has made no frame yet
    row = nano.prefill(Say(text=text, seed=3, max_seconds=(pause_ends - 2) / nano.frame_rate_hz))
    end, samples = None, 0
    while not end:
        (chunk,) = nano.step([row])
        end, samples = chunk.end, samples + chunk.pcm.size
    assert end == "cap" and samples == (pause_ends - 2) * FRAME and row.spoken == ["Yes, it is."]
    assert max(span[1] for span in row.spans) <= len("Yes, it is.")
