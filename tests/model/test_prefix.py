"""What is read once is as if it were read each time: forks, the cache's limits, its files, voices and dialogues."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from misod.dialogues import Dialogue, Dialogues
from misod.engine import Chunk, Fault, PrefixRoom, RowFault, Say, open_engine
from misod.miso.cache import BLOCK, KVCache
from misod.miso.engine import MisoEngine
from misod.miso.load import load_model
from misod.miso.prefix import Prefixes
from misod.miso.prompt import Prompt
from misod.miso.recordings import HEAR_FRAMES, PROMPT_POSITIONS, READ_POSITIONS
from misod.voices import Segment, Voice
from misod.weights.dims import MISO_8B, ModelArgs
from misod.weights.models import bundled

TINY = Path(__file__).parent / "fixtures" / "miso_tiny" / "v99_fp32"
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> MisoEngine:
    room = PrefixRoom(limit_bytes=100 << 20, directory=tmp_path_factory.mktemp("prefixes"))
    return open_engine(bundled(), max_rows=4, prefixes=room)


def position_bytes(engine: MisoEngine) -> int:
    """Of keys and values in fp32."""
    backbone = engine.model.args.backbone
    return 2 * backbone.num_layers * backbone.num_kv_heads * backbone.head_dim * 4


@pytest.fixture
def nano(shared) -> MisoEngine:
    """With a cache that holds nothing, in memory or on disk."""
    shared.prefixes.close()
    kept = shared.prefixes
    kept.hits = kept.misses = kept.evictions = 0
    shutil.rmtree(kept._room.directory, ignore_errors=True)
    return shared


def clip(seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * 24000)) / 24000
    return (0.2 * np.sin(2 * np.pi * 150 * t) + 0.02 * rng.standard_normal(t.size)).astype(np.float32)


def heard(engine: MisoEngine, pcm: np.ndarray, words: str, speaker: int = 0):
    hearing, steps = engine.hear(pcm, words, speaker), 0
    while True:
        try:
            next(hearing)
            steps += 1
        except StopIteration as end:
            return end.value, steps


def learn(engine: MisoEngine, seconds: float = 2.0) -> Voice:
    got, _ = heard(engine, clip(seconds), "This is what was said.")
    return Voice("anna", got.codes, "This is what was said.", got.spoken, 0, got.codec_digest, "a" * 64)


def imported(engine: MisoEngine, seconds: float) -> Voice:
    """One that the model has not read."""
    voice = learn(engine, seconds)
    engine.forget(voice.digest)
    return voice


@pytest.fixture(scope="module")
def anna(shared) -> Voice:
    return imported(shared, seconds=2.0)


def pieces(positions: int) -> list[int]:
    """In which so many are read."""
    return [min(READ_POSITIONS, positions - start) for start in range(0, positions, READ_POSITIONS)]


def speak(engine: MisoEngine, **say):
    """The row, once it has spoken, and all its pcm."""
    row = engine.prefill(Say(**({"text": "Hello.", "seed": 1} | say)))
    pcm = []
    while True:
        (chunk,) = engine.step([row])
        assert isinstance(chunk, Chunk), chunk
        pcm.append(chunk.pcm)
        if chunk.end:
            assert chunk.end == "eos"
            engine.release(row)
            return row, np.concatenate(pcm)


@pytest.fixture
def read(nano, monkeypatch) -> list[int]:
    """How many rows each prompt had that the backbone read."""
    rows, embed = [], nano.model.embed_prompt
    monkeypatch.setattr(nano.model, "embed_prompt", lambda t, mask: (rows.append(t.shape[0]), embed(t, mask))[1])
    return rows


# ---- forks


class Bytes:
    def encode(self, text: str):
        return type("Ids", (), {"ids": [1, *(2 + ord(c) % 90 for c in text), 3]})


def tiny():
    args = ModelArgs.from_dict(json.loads((TINY / "config.json").read_text()))
    model = load_model([TINY / "model.safetensors"], args, {})
    return model, Prompt(Bytes(), args.audio_num_codebooks), 99


def small_nano(engine: MisoEngine):
    return engine.model, engine.prompt, 512


@pytest.mark.parametrize("which", ["tiny", "nano"])
@pytest.mark.parametrize("frames", [30, BLOCK + 70])
def test_a_fork_goes_on_as_if_all_were_read_anew(shared, which, frames):
    model, prompt, codes = tiny() if which == "tiny" else small_nano(shared)
    rng, K = np.random.default_rng(3), model.args.audio_num_codebooks
    past = [Segment(0, "What was said.", rng.integers(1, codes, (K, frames)))]

    def read_rows(rows, cache):
        return model.read(model.embed_prompt(*map(mx.array, rows)), cache)

    whole, first = model.new_cache(), model.new_cache()
    expected = read_rows(prompt.build(past, 1, "And this is new."), whole)
    read_rows(prompt.context_rows(past), first)
    fork = KVCache.fork(first.packed())
    got = read_rows(prompt.build([], 1, "And this is new."), fork)
    for frame in range(6):
        assert fork.offset == whole.offset
        np.testing.assert_allclose(np.array(got), np.array(expected), rtol=0, atol=1e-5)
        ours, theirs = (np.array(model.frame(h, lambda _, logits: mx.argmax(logits, -1))[0]) for h in (got, expected))
        assert ours.tolist() == theirs.tolist(), frame
        codes_in = model.embed_frame(mx.array(ours))
        got, expected = model.read(codes_in, fork), model.read(codes_in, whole)


def test_forks_share_until_they_write_and_leave_what_they_share_as_it_was():
    mx.clear_cache()
    kv = mx.random.normal((2 * 4, 2, 1000, 64))
    mx.eval(kv)
    before, base_bytes = np.array(kv), mx.get_active_memory()
    forks = [KVCache.fork(kv) for _ in range(20)]
    mx.eval([fork.kv for fork in forks])
    assert mx.get_active_memory() - base_bytes < kv.nbytes / 20
    for fork in forks[:2]:
        for layer in range(4):
            mx.eval(fork.attend(layer, mx.ones((1, 4, 3, 64)), mx.full((2, 1, 2, 3, 64), 9.0), 1.0))
        fork.advance(3)
    written = 2 * kv.nbytes * (1024 + BLOCK) // 1000
    assert kv.nbytes < mx.get_active_memory() - base_bytes < 1.1 * written
    assert np.array_equal(np.array(kv), before)
    assert np.array_equal(np.array(forks[2].packed()), before)
    assert np.array(forks[0].kv[0][0, 0, 0, 1000:1003]).min() == 9.0 and forks[0].offset == 1003


def test_a_fork_of_a_fork_that_writes_is_its_own():
    cache = KVCache(1)
    for value in (1.0, 2.0):
        new = mx.full((2, 1, 1, 2, 8), value)
        cache.attend(0, new[0], new, 1.0)
        cache.advance(2)
    kv = cache.packed()
    fork = KVCache.fork(kv)
    new = mx.full((2, 1, 1, 1, 8), 5.0)
    fork.attend(0, new[0], new, 1.0)
    cache.attend(0, 2 * new[0], 2 * new, 1.0)
    fork.advance(1)
    assert np.array(kv)[0, 0, :, 0].tolist() == [1, 1, 2, 2]
    assert np.array(fork.packed())[1, 0, :, 0].tolist() == [1, 1, 2, 2, 5]


# ---- limits


def prefix(positions: int, layout=(4, 1, 8), dtype=mx.float32) -> mx.array:
    layers, heads, dim = layout
    return mx.zeros((layers, heads, positions, dim), dtype)


def test_50_voices_of_10_s_stay_under_the_limit_and_those_used_last_are_kept():
    positions, layout = 125 + 1 + 40, (4, 1, 8)
    each = prefix(positions).nbytes
    kept = Prefixes(PrefixRoom(20 * each + each // 2), "m", layout, mx.float32)
    mx.clear_cache()
    base_bytes = mx.get_active_memory()
    for number in range(50):
        kv = prefix(positions) + number
        mx.eval(kv)
        kept.add(f"d{number}", kv)
        assert kept.bytes <= 20.5 * each
        if number > 2:
            assert kept.find(["d2"])[0] == 1
    del kv
    assert (kept.bytes, kept.evictions) == (20 * each, 30)
    assert mx.get_active_memory() - base_bytes <= 21 * each
    assert [number for number in range(50) if f"d{number}" in kept._kept] == [2, *range(31, 50)]
    assert (kept.find(["d0"])[0], kept.misses, kept.hits) == (0, 1, 47)
    kept.forget("d2")
    kept.forget("never there")
    assert kept.bytes == 19 * each


def test_at_the_8bs_shapes_50_voices_of_10_s_are_over_a_gigabyte_and_the_limit_holds():
    """Shapes only: MLX computes nothing that is not asked for."""
    args = MISO_8B.backbone
    layout = 2 * args.num_layers, args.num_kv_heads, args.head_dim
    assert 2 * np.prod(layout) == 32 * 8 * 128 * 2 * 2 == 131_072  # bytes a position in bf16
    positions, limit_bytes = 125 + 1 + 60, PrefixRoom().limit_bytes
    kept = Prefixes(PrefixRoom(), "m", layout, mx.bfloat16)
    for number in range(50):
        kept.add(f"d{number}", prefix(positions, layout, mx.bfloat16))
        assert kept.bytes <= limit_bytes
    assert 50 * positions * 131_072 > limit_bytes
    assert kept.bytes == limit_bytes // (positions * 131_072) * positions * 131_072 > 0.9 * limit_bytes


def test_one_that_is_over_the_limit_alone_drops_no_other():
    kept = Prefixes(PrefixRoom(prefix(10).nbytes), "m", (4, 1, 8), mx.float32)
    kept.add("small", prefix(10))
    kept.add("large", prefix(11))
    assert (kept.find(["small", "large"])[0], kept.evictions) == (1, 0)
    none = Prefixes(PrefixRoom(limit_bytes=0), "m", (4, 1, 8), mx.float32)
    none.add("small", prefix(10))
    assert (none.find(["small"]), none.bytes) == ((0, None), 0)


def test_the_longest_is_found():
    kept = Prefixes(PrefixRoom(), "m", (4, 1, 8), mx.float32)
    kept.add("1", prefix(5))
    kept.add("12", prefix(9))
    count, cache = kept.find(["1", "12", "123"])
    assert (count, cache.offset) == (2, 9)


# ---- files


@pytest.fixture
def room(tmp_path) -> PrefixRoom:
    return PrefixRoom(directory=tmp_path / "prefixes")


def on_disk(room: PrefixRoom, model="m" * 64, layout=(4, 1, 8), dtype=mx.float32) -> Prefixes:
    return Prefixes(room, model, layout, dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_prefix_comes_back_from_disk_bit_for_bit(room, dtype):
    kv = mx.random.normal((4, 1, 9, 8)).astype(dtype)
    on_disk(room, dtype=dtype).store("a" * 64, kv)
    assert on_disk(room, dtype=dtype).find(["a" * 64]) == (0, None)  # it was not said that it may be there
    count, cache = on_disk(room, dtype=dtype).find(["a" * 64], 9)
    assert count == 1 and cache.packed().dtype == dtype
    assert mx.array_equal(cache.packed().view(mx.uint16), kv.view(mx.uint16))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


SPOILED = {
    "of another model, to the 16th digit": lambda p: on_disk(p, "m" * 16 + "n" * 48),
    "of other dims": lambda p: on_disk(p, layout=(4, 2, 4)),
    "of another type": lambda p: on_disk(p, dtype=mx.float16),
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_a_stale_file_is_never_used(room, spoiled):
    on_disk(room).store("a" * 64, prefix(9))
    assert spoiled(room).find(["a" * 64], 9) == (0, None)


@pytest.mark.parametrize("at", [0, 8, 30, -1, -100])
def test_a_file_with_one_bit_flipped_is_never_used_and_is_replaced(room, at):
    on_disk(room).store("a" * 64, prefix(9) + 1)
    (path,) = room.directory.iterdir()
    whole = path.read_bytes()
    flip(path, at)
    assert on_disk(room).find(["a" * 64], 9) == (0, None)
    on_disk(room).store("a" * 64, prefix(9) + 1)
    assert path.read_bytes() == whole and on_disk(room).find(["a" * 64], 9)[0] == 1


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff" * 99, bytes(10_000)], ids=len)
def test_a_foreign_file_is_never_used(room, data):
    on_disk(room).store("a" * 64, prefix(9))
    (path,) = room.directory.iterdir()
    torn = path.read_bytes()[:-7]
    for spoiled in (data, torn):
        path.write_bytes(spoiled)
        assert on_disk(room).find(["a" * 64], 9) == (0, None)


def test_files_used_least_recently_go_and_what_a_killed_daemon_left_goes(room):
    on_disk(room).store("a" * 64, prefix(9))
    size = next(room.directory.iterdir()).stat().st_size
    few = replace(room, disk_limit_bytes=3 * size)
    (room.directory / ".x.partial").touch()
    for age, letter in enumerate("bca"):
        on_disk(few).store(letter * 64, prefix(9))
        (path,) = room.directory.glob(f"*{letter * 16}*")
        os.utime(path, ns=(age, age))
    on_disk(few).find(["b" * 64], 9)
    on_disk(few).store("d" * 64, prefix(9))
    assert sorted(path.name[17] for path in room.directory.iterdir()) == ["a", "b", "d"]
    assert sum(path.stat().st_size for path in room.directory.iterdir()) <= few.disk_limit_bytes


def test_a_directory_that_cannot_be_written_costs_only_the_file(tmp_path):
    (tmp_path / "prefixes").write_text("a file in its place")
    kept = on_disk(PrefixRoom(directory=tmp_path / "prefixes" / "x"))
    kept.store("a" * 64, prefix(9))
    kept.add("a" * 64, prefix(9))
    kept.store("a" * 64)
    assert kept.find(["a" * 64], 9)[0] == 1


def test_what_is_forgotten_is_not_on_disk_and_cannot_come_there(room):
    kept = on_disk(room)
    kept.add("a" * 64, prefix(9))
    kept.store("a" * 64)
    assert on_disk(room).find(["a" * 64], 9)[0] == 1
    kept.forget("a" * 64)
    kept.store("a" * 64)
    assert not list(room.directory.iterdir()) and kept.bytes == 0


# ---- voices


def test_a_recording_is_heard_in_small_pieces_as_it_would_be_at_once(nano):
    pcm = clip(3.0)
    got, steps = heard(nano, pcm, "I have 2 dogs. They bark.")
    whole = np.array(nano.mimi.encode(mx.array(pcm)[None], nano.model.args.audio_num_codebooks))[0]
    assert np.array_equal(got.codes, whole) and got.codes.dtype == np.int16
    assert got.spoken == "I have two dogs. They bark." and got.codec_digest == nano.info.codec
    assert steps >= 38 / HEAR_FRAMES + 2


def test_a_transcript_may_be_unknown_but_not_unreadable(nano):
    assert heard(nano, clip(1.0), "")[0].spoken == ""
    with pytest.raises(RowFault, match="no letters"):
        heard(nano, clip(1.0), "你好。")


def test_a_voice_that_was_learned_is_read_already_and_says_the_same(nano, read):
    voice = learn(nano, seconds=10.0)
    length = nano.prompt.segment_length(voice.segment)
    assert read == pieces(length) and length > 2 * READ_POSITIONS
    read.clear()
    _, pcm = speak(nano, voice=voice)
    assert read == [nano.prompt.length([], 0, "Hello.")]
    nano.keep(voice.digest)
    nano.prefixes.close()
    _, from_disk = speak(nano, voice=voice)
    assert len(read) == 2
    nano.forget(voice.digest)
    _, anew = speak(nano, voice=voice)
    assert read[2:-1] == pieces(length) and pcm.tobytes() == from_disk.tobytes() == anew.tobytes()


def test_the_second_say_with_a_voice_reads_its_own_text_only(nano, read, anna):
    first, pcm = speak(nano, voice=anna)
    length = nano.prompt.segment_length(first.voice)
    own = nano.prompt.length([], 0, "Hello.")
    assert read == [*pieces(length), own] and length > 26
    read.clear()
    second, again = speak(nano, voice=anna)
    assert read == [own] and again.tobytes() == pcm.tobytes()
    assert second.voice_digest == anna.digest
    kept = nano.memory()
    assert (kept.prefix_hits, kept.prefix_misses) == (1, 1)
    assert kept.prefix_bytes == position_bytes(nano) * length


def test_a_voice_is_heard_in_what_is_said(nano, anna):
    """The mechanism: nano was not taught to clone, but what it draws is drawn from another context."""
    _, alone = speak(nano, sampling=GREEDY)
    _, with_voice = speak(nano, voice=anna, sampling=GREEDY)
    assert alone.tobytes() != with_voice.tobytes()


def test_after_a_restart_it_is_read_from_disk_and_says_the_same(nano, read, anna):
    _, pcm = speak(nano, voice=anna)
    nano.prefixes.close()
    read.clear()
    _, again = speak(nano, voice=anna)
    assert len(read) == 1 and again.tobytes() == pcm.tobytes()


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_spoiled_file_is_made_anew(nano, read, anna, how):
    _, pcm = speak(nano, voice=anna)
    (path,) = nano.prefixes._room.directory.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9]) if how == "cut" else flip(path, 5000)
    nano.prefixes.close()
    read.clear()
    _, again = speak(nano, voice=anna)
    assert len(read) > 1 and again.tobytes() == pcm.tobytes() and path.read_bytes() == whole


def test_a_one_off_is_kept_in_memory_and_not_on_disk(nano, read, anna):
    voice = replace(anna, name="")
    speak(nano, voice=voice)
    read.clear()
    speak(nano, voice=voice)
    assert len(read) == 1 and not nano.prefixes._room.directory.exists()


def test_what_was_forgotten_is_not_in_memory(nano, anna):
    speak(nano, voice=anna)
    assert nano.memory().prefix_bytes > 0
    nano.forget(anna.digest)
    assert nano.memory().prefix_bytes == 0


def test_each_piece_of_a_text_follows_the_voice(nano, read, anna):
    """nano was taught to follow one segment: the voice is that, and never leaves."""
    speak(nano, voice=anna)
    read.clear()
    row, _ = speak(nano, voice=anna, text="One. Two. Three.")
    alone = [nano.prompt.length([], 0, piece) for piece in ("One.", "Two.", "Three.")]
    assert read == alone and row.dropped == 2


def test_only_what_a_dialogue_needs_is_kept_of_what_was_said(nano):
    assert speak(nano, text="One. Two.")[0].said == []


def test_a_voice_stays_while_what_was_said_leaves(nano, read, anna, monkeypatch):
    monkeypatch.setattr(nano, "speech", replace(nano.speech, segments=3))
    speak(nano, voice=anna)
    read.clear()
    row, _ = speak(nano, voice=anna, text="One. Two. Three. Four.")
    assert row.dropped == 1 and [segment.text for segment in row.context] == ["Two.", "Three."]
    assert read[3] == nano.prompt.length(row.context, 0, "Four.")  # the voice was not read again


def test_a_voice_of_another_codec_is_refused_with_what_to_do(nano, anna):
    for other in (
        replace(anna, codec_digest="b" * 64),
        replace(anna, codes=np.ones((32, 9), np.int16)),
        replace(anna, codes=np.full((8, 9), 600, np.int16)),
    ):
        with pytest.raises(RowFault, match="the voice anna") as fault:
            nano.prefill(Say(text="Hello.", seed=1, voice=other))
        assert fault.value.code == "bad_voice"


def test_a_voice_that_leaves_no_room_to_speak_is_refused_when_learned_and_when_used(nano, anna, monkeypatch):
    small = replace(nano.model.args, backbone=replace(nano.model.args.backbone, max_seq_len=340))
    monkeypatch.setattr(nano.model, "args", small)
    for call in (lambda: learn(nano), lambda: nano.prefill(Say(text="Hello.", seed=1, voice=anna))):
        with pytest.raises(RowFault, match="use a shorter one") as fault:
            call()
        assert fault.value.code == "bad_voice"


@pytest.mark.slow
def test_the_longest_recording_leaves_room_to_speak(nano):
    assert learn(nano, seconds=30.0).codes.shape == (nano.model.args.audio_num_codebooks, 375)
    row, _ = speak(nano, voice=learn(nano, seconds=30.0), text="Hello.")
    assert row.cache is None and row.frames > 1


# ---- dialogues


def say_on(engine: MisoEngine, dialogue: Dialogue, text: str, **say):
    """The row, and the dialogue as it goes on, as the daemon keeps it."""
    row, pcm = speak(engine, text=text, dialogue=dialogue, **say)
    dialogues = Dialogues(engine.forget)
    dialogues._kept[dialogue.name] = dialogue
    dialogues.add(engine.info, row)
    return row, pcm, dialogues.get(dialogue.name)


@pytest.mark.parametrize("with_voice", [False, True])
def test_what_is_said_next_reads_only_its_own_text(nano, read, anna, monkeypatch, with_voice):
    monkeypatch.setattr(nano, "speech", replace(nano.speech, segments=64))
    voice = anna if with_voice else None
    first, _, dialogue = say_on(nano, Dialogue("chat"), "One. Two.", voice=voice)
    assert [segment.text for segment in first.said] == ["One.", "Two."]
    kept = nano.memory().prefix_bytes
    read.clear()
    second, _, dialogue = say_on(nano, dialogue, "Three.", voice=voice)
    assert read == [nano.prompt.length([], 0, "Three."), 1]  # and the EOS frame that ends it, once it is spoken
    assert [segment.text for segment in dialogue.segments] == ["One.", "Two.", "Three."]
    grown = position_bytes(nano) * nano.prompt.segment_length(second.said[0])
    assert nano.memory().prefix_bytes == kept + grown  # the past it went on from is not kept beside it


def test_a_past_that_is_kept_says_what_one_read_anew_says(nano, monkeypatch):
    monkeypatch.setattr(nano, "speech", replace(nano.speech, segments=64))
    _, _, dialogue = say_on(nano, Dialogue("chat"), "One. Two.", sampling=GREEDY)
    _, kept, _ = say_on(nano, dialogue, "Three.", sampling=GREEDY)
    nano.prefixes.close()
    _, anew, _ = say_on(nano, dialogue, "Three.", sampling=GREEDY)
    assert kept.size == anew.size
    np.testing.assert_allclose(kept, anew, rtol=0, atol=2e-4)


def test_nano_follows_one_segment_and_the_dialogue_keeps_no_more(nano):
    dialogue = Dialogue("chat")
    for text in ("One.", "Two.", "Three."):
        row, _, dialogue = say_on(nano, dialogue, text)
        assert len(row.context) <= 1
    assert [segment.text for segment in dialogue.segments] == ["Two.", "Three."]


@pytest.mark.slow
def test_a_full_context_drops_a_quarter_at_once_and_the_next_finds_what_stayed(nano, read, monkeypatch):
    monkeypatch.setattr(nano, "speech", replace(nano.speech, segments=8))
    dialogue, dropped = Dialogue("chat"), []
    for _ in range(16):
        read.clear()
        row, _, dialogue = say_on(nano, dialogue, "One.")
        dropped.append(row.dropped)
        if not row.dropped:
            assert read[0] == nano.prompt.length([], 0, "One.")
    assert [count for count in dropped if count] == [3] * dropped.count(3) and 2 <= dropped.count(3) <= 3


def test_codes_of_another_model_are_refused(nano):
    _, _, dialogue = say_on(nano, Dialogue("chat"), "One.")
    with pytest.raises(RowFault, match="session chat was spoken by 8b, not nano") as fault:
        nano.prefill(Say(text="Two.", seed=1, dialogue=replace(dialogue, model="8b", digest="b" * 64)))
    assert fault.value.code == "bad_value"


def test_what_was_cut_is_not_remembered(nano):
    row = nano.prefill(Say(text="One, two, three, four.", seed=1, dialogue=Dialogue("chat"), max_seconds=0.5))
    chunk = None
    while not (chunk and chunk.end):
        (chunk,) = nano.step([row])
        assert not isinstance(chunk, Fault)
    assert chunk.end == "cap" and not nano.prefixes._kept


# ---- in company


def test_what_is_long_to_read_is_read_between_the_frames_of_others(nano, read):
    """A voice that the model has not read, and a text of many pieces: another's frame waits for a step at most."""
    other = nano.prefill(Say(text="Somebody speaks on and on, and is not to be held up by others.", seed=2))
    voice = imported(nano, seconds=8.0)
    words = "The rain came down all night. It was cold. Nobody slept."
    del read[:]
    row = nano.prefill(Say(text=words, seed=1, voice=voice, max_seconds=2.0))
    steps, ended = [sum(read)], False
    while not ended:
        del read[:]
        chunks = nano.step([other, row])
        assert not any(isinstance(chunk, Fault) for chunk in chunks)
        assert len(read) <= 1 and sum(read) <= PROMPT_POSITIONS  # for one of them
        steps.append(sum(read))
        ended = any(chunk.end for chunk in chunks)
        assert chunks[0].end or other.reading or len(chunks[0].pcm) or other.held
    assert steps[0] == READ_POSITIONS and sum(steps[:4]) > 1.5 * READ_POSITIONS
    nano.release(other)
    nano.release(row)


def test_what_is_next_is_read_in_the_step_in_which_a_piece_ends_unless_another_waits(nano, read):
    """So that a row goes without a frame for no step more than its prompt takes."""
    say = Say(text="It was cold. Nobody slept.", seed=3)

    def steps_until_the_next(row, most: int) -> int:
        for count in range(1, most + 1):
            nano.step([row])
            if len(row.spoken) > 1:
                return count
        raise AssertionError("one piece")

    alone = nano.prefill(say)
    steps = steps_until_the_next(alone, 100)
    assert alone.reading is None and len(nano.step([alone])[0].pcm)
    row = nano.prefill(say)
    for _ in range(steps - 1):
        nano.step([row])
    waits = nano.prefill(Say(text="Then it was day.", seed=1, voice=imported(nano, seconds=4)))
    del read[:]
    nano.step([row, waits])
    assert len(row.spoken) > 1 and row.reading and waits.reading and len(read) == 1  # of the one that waits
    nano.step([row, waits])
    assert waits.reading and not row.reading
    for each in (alone, row, waits):
        nano.release(each)
