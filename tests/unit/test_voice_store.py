"""The store: a voice is whole or not there, its name is no path, and what it holds is what was written."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from misod import tensor_file, voices
from misod.voices import Segment, Store, Voice, digests
from protocol import messages as m
from protocol.errors import ProtocolError


def voice(name="anna", seed=0, **changes) -> Voice:
    codes = np.random.default_rng(seed).integers(1, 2048, (8, 125)).astype(np.int16)
    base = Voice(name, codes, "It is 5.", "It is five.", 1, "c" * 64, "a" * 64, voices.now(), "CC0", True, "nano")
    return replace(base, **changes)


def kitten(name="anna", **changes) -> Voice:
    """One as KittenTTS 2 learns it."""
    rng = np.random.default_rng(0)
    arrays = {"embedding": rng.normal(size=8).astype(np.float32), "codes": np.arange(9, dtype=np.int16)[None]}
    return voice(name, model="kitten", **arrays | {"recording": np.arange(-50, 50, dtype=np.int16)} | changes)


@pytest.fixture
def dropped() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path, dropped) -> Store:
    return Store(tmp_path / "voices", tmp_path / "prefixes", dropped.append)


def refused(call, *args) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        call(*args)
    return caught.value


def same(a: Voice, b: Voice) -> bool:
    arrays = dict.fromkeys(("codes", "embedding", "recording"))
    alike = (np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
    return all(alike) and replace(a, **arrays) == replace(b, **arrays)


def test_what_was_written_is_read_also_by_another_store(store, tmp_path):
    store.write(voice(), replace=False)
    assert same(store.read("anna"), voice(created=store.read("anna").created))
    assert Store(tmp_path / "voices", tmp_path, print).names() == ["anna"]
    assert os.stat(tmp_path / "voices").st_mode & 0o777 == 0o700


def test_a_listing_says_all_of_one_and_is_short_of_all(store):
    store.write(voice(text="long " * 99), replace=False)
    store.write(voice("bob", seed=1), replace=False)
    assert [about["name"] for about in store.listing()] == ["anna", "bob"]
    assert len(store.listing()[0]["text"]) == voices.CUT_CHARACTERS
    (about,) = store.listing("anna")
    assert (about["text"], about["seconds"], about["speaker"], about["permission"]) == ("long " * 99, 10.0, 1, True)


def test_a_listing_of_the_most_voices_there_can_be_fits_the_wire(tmp_path, monkeypatch):
    monkeypatch.setattr(voices, "write_synced", lambda path, data: path.write_bytes(data))  # 500 fsyncs
    monkeypatch.setattr(voices, "sync", lambda _: None)
    store = Store(tmp_path, tmp_path, print)
    for number in range(voices.MAX_VOICES):
        store.write(voice(f"{number:064}", text="\x01" * 6000, licence="\x01" * 1000), replace=False)
    assert len(json.dumps(store.listing(), ensure_ascii=False)) < m.MAX_LISTING_BYTES
    assert refused(store.write, voice(), False).code == "storage"
    store.write(voice("0" * 64), replace=True)


def test_the_largest_voice_there_can_be_fits_the_wire():
    codes = np.full((voices.MAX_CODEBOOKS, 375), 2050, np.int16)
    words = {"text": "\x01" * 6000, "spoken": "é" * 12_000, "licence": "\x01" * 1000, "model": "m" * 64}
    of_kitten = {"recording": np.full(voices.MAX_RECORDING, -7, np.int16), "codes": np.ones((1, 750), np.int16)}
    for more in ({"codes": codes}, of_kitten | {"embedding": np.ones(voices.MAX_EMBEDDING, np.float32)}):
        largest = voice("n" * 64, **words | more)
        largest.check()
        assert len(largest.pack()) <= m.MAX_VOICE_BYTES and same(voices.unpack(largest.pack()), largest)


def test_a_name_is_taken_unless_it_is_replaced(store, dropped):
    store.write(voice(), replace=False)
    assert refused(store.write, voice(seed=1), False).code == "voice_exists"
    store.write(voice(seed=1), replace=True)
    assert store.read("anna").digest == voice(seed=1).digest
    assert dropped == [voice().digest]


HOSTILE = [
    "../x",
    "a/b",
    "/etc/passwd",
    "..",
    ".",
    "",
    "-a",
    ".a",
    "A",
    "Anna",
    "é",
    "a" * 65,
    "a\0b",
    "a\n",
    "a b",
    "١",
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_name_that_is_no_slug_reaches_no_file(store, tmp_path, name):
    for call, args in ((store.read, (name,)), (store.forget, (name,)), (store.write, (voice(name), True))):
        error = refused(call, *args)
        assert error.code == "bad_value" and "a-z" in error.message
    assert not list(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="a-z"):
        voices.unpack(voice(name).pack())


def test_a_voice_that_is_not_there_is_one_line(store):
    for call in (store.read, store.forget):
        assert refused(call, "anna").code == "no_voice"


def test_what_a_killed_learn_left_is_removed_and_never_seen(store, tmp_path):
    store.write(voice(), replace=False)
    (tmp_path / "voices" / ".bob.partial").write_bytes(voice("bob").pack()[:100])
    assert store.names() == ["anna"]
    Store(tmp_path / "voices", tmp_path, print)
    assert [path.name for path in (tmp_path / "voices").iterdir()] == ["anna.safetensors"]


def test_a_disk_that_is_full_leaves_nothing(store, tmp_path, monkeypatch):
    def full(path, data):
        path.write_bytes(data[:50])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(voices, "write_synced", full)
    error = refused(store.write, voice(), False)
    assert error.code == "storage" and "No space left on device" in error.message
    assert not list((tmp_path / "voices").iterdir())


def test_a_directory_that_is_none_is_told_and_leaves_the_daemon_alone(store, tmp_path):
    """An OSError of the I/O thread is the end of misod."""
    store.write(voice(), replace=False)
    (tmp_path / "prefixes").mkdir()
    made = tmp_path / "prefixes" / f"{'0' * 16}-{voice().digest[:16]}.safetensors"
    made.mkdir()  # as one that cannot be removed
    assert refused(store.write, voice(seed=1), True).code == "storage"
    assert refused(store.forget, "anna").code == "storage"
    assert store.read("anna").digest == voice().digest
    other = Store(tmp_path / "file", tmp_path / "prefixes", print)
    (tmp_path / "file").write_text("in its place")
    assert refused(other.write, voice(), False).code == "storage"
    assert refused(other.forget, "anna").code == "storage"


def test_two_of_one_size_within_a_tick_of_the_clock_are_told_apart(store, tmp_path, monkeypatch):
    path = tmp_path / "voices" / "anna.safetensors"
    for seed in (0, 1):
        store.write(voice(seed=seed, created="2026-01-01"), replace=True)
        os.utime(path, ns=(1, 1))
        assert store.read("anna").digest == voice(seed=seed).digest
        monkeypatch.setattr(voices, "sync", lambda _: os.utime(path, ns=(1, 1)))


def test_one_that_is_learned_again_as_it_was_is_not_dropped(store, dropped):
    for _ in range(2):
        store.write(voice(), replace=True)
    assert dropped == []


def test_a_thousand_learned_and_forgotten_leave_no_file(store, tmp_path):
    (tmp_path / "prefixes").mkdir()
    for number in range(1000):
        made = voice(f"v{number}", seed=number)
        store.write(made, replace=False)
        (tmp_path / "prefixes" / f"{'0' * 16}-{made.digest[:16]}.safetensors").touch()  # what a model makes of it
        store.forget(made.name)
    assert not list((tmp_path / "voices").iterdir()) and not list((tmp_path / "prefixes").iterdir())


def test_a_file_that_changes_under_its_path_is_read_anew(store, tmp_path):
    store.write(voice(), replace=False)
    before = store.read("anna").digest
    other = tmp_path / "other"
    other.write_bytes(voice(seed=5).pack())
    other.replace(tmp_path / "voices" / "anna.safetensors")
    assert store.read("anna").digest == voice(seed=5).digest != before


# ---- files that are none


def changed(**about) -> bytes:
    tensors, metadata = tensor_file.unpack(voice().pack())
    return tensor_file.pack(tensors, {key: word for key, word in (metadata | about).items() if word is not None})


def of_codes(codes: np.ndarray, dtype: str = "I16") -> bytes:
    made = voice(codes=np.ascontiguousarray(codes))
    _, metadata = tensor_file.unpack(voice().pack())
    return tensor_file.pack({"codes": (dtype, codes)}, metadata | {"digest": made.digest})


def of_kitten(without: str = "", dtype: str = "F32", **arrays) -> bytes:
    """As one that KittenTTS 2 learned, under its own digest."""
    made = kitten(**arrays)
    tensors, metadata = tensor_file.unpack(kitten().pack())
    tensors = {name: (kind, getattr(made, name)) for name, (kind, _) in tensors.items() if name != without}
    if "embedding" in tensors:
        tensors["embedding"] = dtype, tensors["embedding"][1]
    return tensor_file.pack(tensors, metadata | {"digest": made.digest})


WHOLE = voice().pack()
NONE = {
    "nothing": b"",
    "a word": b"hello",
    "cut": WHOLE[:-1],
    "one byte more": WHOLE + b"\0",
    "half a header": WHOLE[:60],
    "a header of 2 to the 63": b"\xff" * 7 + b"\x7f" + WHOLE[8:],
    "another tensor": WHOLE.replace(b'"codes"', b'"coded"'),
    "no metadata": WHOLE.replace(b"__metadata__", b"__metadatu__"),
    "a newer format": changed(format="3"),
    "no model where there is to be one": changed(model=None),
    "a model's name that is none": changed(model="na no"),
    "a tensor more": tensor_file.pack({"more": ("I16", np.ones(3)), "codes": ("I16", np.ones((8, 9)))}, {}),
    "an embedding alone": of_kitten(without="recording"),
    "a recording alone": of_kitten(without="embedding"),
    "an embedding that is not finite": of_kitten(embedding=np.array([1, np.nan], np.float32)),
    "an embedding of two dimensions": of_kitten(embedding=np.ones((2, 2), np.float32)),
    "an embedding of halves": of_kitten(dtype="F16"),
    "a wide embedding": of_kitten(embedding=np.ones(voices.MAX_EMBEDDING + 1, np.float32)),
    "a long recording": of_kitten(recording=np.ones(voices.MAX_RECORDING + 1, np.int16)),
    "751 tokens": of_kitten(codes=np.ones((1, 751), np.int16)),
    "a key more": changed(more="1"),
    "a speaker that is none": changed(speaker="-1"),
    "a large speaker": changed(speaker="100"),
    "a permission that is none": changed(permission="yes"),
    "a name that is a path": changed(name="../anna"),
    "another text": changed(spoken="It is six."),
    "a digest that is none": changed(clip_digest="A" * 64),
    "a time that is none": changed(created="yesterday"),
    "a long text": changed(text="x" * 6001),
    "a long licence": changed(licence="x" * 1001),
    "a lone surrogate": changed(text="XX").replace(b"XX", b"\\ud800"),
    "floats": of_codes(np.ones((8, 9), np.float32), "F32"),
    "one dimension": of_codes(np.ones(8, np.int16)),
    "a negative code": of_codes(np.full((8, 9), -1, np.int16)),
    "an end in the middle": of_codes(np.arange(9, dtype=np.int16)[None].repeat(8, 0)),
    "376 frames": of_codes(np.ones((8, 376), np.int16)),
    "65 codebooks": of_codes(np.ones((65, 9), np.int16)),
    "another code": bytes([*WHOLE[:-1], WHOLE[-1] ^ 1]),
    "over the limit": WHOLE + bytes(m.MAX_VOICE_BYTES),
    "deep": (b"[" * 3000 + b"]" * 3000).join([(6000).to_bytes(8, "little"), b""]),
}


@pytest.mark.parametrize("data", NONE.values(), ids=NONE.keys())
def test_a_file_that_is_no_voice_is_refused_listed_and_can_be_forgotten(store, tmp_path, data):
    with pytest.raises(ValueError):
        voices.unpack(data)
    store.write(voice("bob"), replace=False)
    (tmp_path / "voices" / "anna.safetensors").write_bytes(data)
    assert refused(store.read, "anna").code == "bad_voice"
    damaged, good = store.listing()
    assert damaged.keys() == {"name", "problem"} and good["name"] == "bob"
    store.forget("anna")
    assert store.names() == ["bob"]


def test_one_of_kitten_s_is_read_as_it_was_written_and_another_recording_is_another_voice(store):
    store.write(kitten(), replace=False)
    assert same(store.read("anna"), kitten(created=store.read("anna").created))
    assert store.listing("anna")[0]["seconds"] == 9 / 25
    changes = {"embedding": np.ones(8, np.float32)}, {"recording": np.ones(100, np.int16)}, {"spoken": "No."}
    assert len({kitten().digest, *(kitten(**change).digest for change in changes)}) == 4
    assert kitten(codes=voice().codes).digest != voice().digest


def test_one_of_before_voices_named_their_model_is_still_read(store, tmp_path):
    store.write(voice("bob"), replace=False)
    (tmp_path / "voices" / "anna.safetensors").write_bytes(changed(format="1", model=None))
    assert store.read("anna").model == "" and store.read("anna").digest == voice().digest
    store.write(store.read("anna"), replace=True)
    assert store.read("anna").model == ""


def test_memory_holds_the_voices_that_were_read_last(store, monkeypatch):
    monkeypatch.setattr(voices, "MAX_IN_MEMORY", 2)
    for name in ("anna", "bob", "cy"):
        store.write(voice(name), replace=False)
    assert [row["name"] for row in store.listing()] == ["anna", "bob", "cy"]
    assert [*store._read] == ["bob", "cy"]
    monkeypatch.setattr(voices, "unpack", None)  # a list again opens no file
    assert [row["name"] for row in store.listing()] == ["anna", "bob", "cy"]
    assert store.read("bob") is store.read("bob") and [*store._read] == ["cy", "bob"]


def test_a_directory_that_cannot_be_listed_is_no_empty_one(tmp_path):
    (tmp_path / "voices").write_text("a file")
    store = Store(tmp_path / "voices", tmp_path, print)
    for call, *args in ((store.names,), (store.listing,), (store.check_room, "anna", False)):
        error = refused(call, *args)
        assert error.code == "storage" and error.message.endswith(f"{tmp_path / 'voices'}: Not a directory")


@pytest.mark.parametrize("whole", [WHOLE, kitten().pack()], ids=["miso", "kitten"])
def test_1000_mutated_files_are_a_voice_or_a_value_error(whole):
    rng, taken = np.random.default_rng(1), 0
    for _ in range(1000):
        data = bytearray(whole)
        for where in rng.integers(0, len(data), rng.integers(1, 4)):
            data[where] = rng.integers(0, 256)
        try:
            voices.unpack(bytes(data))
            taken += 1
        except ValueError:
            pass
    assert taken < 50  # what is spoken is under the digest; a name or a date may change


def test_a_voice_under_another_name_than_its_files_is_refused(store, tmp_path):
    store.write(voice("bob"), replace=False)
    (tmp_path / "voices" / "bob.safetensors").rename(tmp_path / "voices" / "anna.safetensors")
    assert "calls itself bob" in refused(store.read, "anna").message


def test_what_is_no_file_is_not_opened(store, tmp_path):
    (tmp_path / "voices").mkdir()
    os.mkfifo(tmp_path / "voices" / "anna.safetensors")  # opening it would wait for ever
    assert refused(store.read, "anna").code == "bad_voice"


# ---- digests


def test_a_digest_is_of_all_that_is_heard_and_of_nothing_else():
    base = voice()
    assert base.digest == voice("bob", text="It is V.", licence="", clip_digest="b" * 64).digest
    assert base.digest == replace(base, codes=base.codes.astype(np.int32)).digest
    others = [voice(seed=1), voice(spoken="It is six."), voice(speaker=0), replace(base, codes=base.codes.T)]
    assert len({base.digest, *(other.digest for other in others)}) == 5


def test_the_digest_of_a_context_names_its_segments_in_their_order():
    a, b = (Segment(speaker, "x", np.ones((2, 3), np.int32)) for speaker in (0, 1))
    assert digests([a, b])[0] == digests([a])[0]
    assert len({*digests([a, b]), *digests([b, a]), *digests([a, a])}) == 5
    split, joined = [Segment(0, "ab", a.codes), a], [Segment(0, "a", a.codes), replace(a, text="bx")]
    assert digests(split)[1] != digests(joined)[1]
