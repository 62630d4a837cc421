"""What a client must never be able to do to the daemon. Each case ends in a ping: it lives, and answers."""

import contextlib
import random
import socket
import struct
from dataclasses import asdict

import msgpack
import psutil
import pytest
from harness import HANG_S, Home, Raw, frames_of, until

from protocol import codec
from protocol import messages as m


@pytest.fixture(scope="module")
def one():
    """One daemon for all malformed frames: none may leave it the worse."""
    home = Home()
    home.daemon = home.fake()
    yield home
    assert home.daemon.poll() is None
    home.close()


VOICES = [
    m.Learn(
        id=4, name="a", clip=bytes(3840), text="x", speaker=0, clip_digest="a" * 64, permission=True, licence="",
        replace=True,
    ),
    m.VoicesRequest(id=5, name=""),
    m.Forget(id=6, name="a"),
    m.Export(id=7, name="a"),
    m.Import(id=8, name="a", data=b"12345678", replace=True),
    m.SessionsRequest(id=9),
    m.ForgetSession(id=10, name=""),
    m.Say(id=11, text="two words", session="a", clip=bytes(3840), clip_text="x"),
]  # fmt: skip
SAY = {"t": "say", **asdict(m.Say(id=1, text="two words", speaker=0))}


def refused(home, *frames: bytes) -> m.Error:
    """The daemon's answer to `frames`, and proof that it goes on."""
    with Raw(home) as raw:
        raw.send_bytes(*frames)
        error = raw.until(m.Error)[-1]
        raw.ping()
    with Raw(home) as other:
        until(lambda: other.ping().speaking == 0, "the worker to have heard of it")
    return error


def packed(**changes) -> bytes:
    return msgpack.packb({key: value for key, value in (SAY | changes).items() if value is not ...})


def test_an_empty_frame(one):
    assert refused(one, b"").code == "bad_message"


def test_two_frames(one):
    assert refused(one, packed(), packed()).code == "bad_message"


def test_an_empty_delimiter_frame(one):
    assert refused(one, b"", packed()).code == "bad_message"


def test_a_thousand_frames(one):
    assert refused(one, *[b"x"] * 1000).code == "bad_message"


def test_no_msgpack(one):
    assert refused(one, b"GET / HTTP/1.1\r\n\r\n").code == "bad_message"


def test_half_a_map(one):
    assert refused(one, packed()[:-3]).code == "bad_message"


def test_a_map_and_more(one):
    assert refused(one, packed() + b"\0").code == "bad_message"


def test_no_map(one):
    assert refused(one, msgpack.packb([1, 2, 3])).code == "bad_message"


def test_deep_nesting(one):
    assert refused(one, b"\x91" * 2000 + b"\x90").code == "bad_message"


def test_a_nested_value(one):
    assert refused(one, packed(text={"a": ["b"]})).code == "bad_message"


def test_a_promise_of_four_billion_elements(one):
    assert refused(one, b"\xdd\xff\xff\xff\xff").code == "bad_message"


def test_a_megabyte_of_empty_arrays(one):
    assert refused(one, b"\xdd" + struct.pack(">I", 1 << 20) + b"\x90" * (1 << 20)).code == "bad_message"


def test_a_timestamp(one):
    assert refused(one, msgpack.packb(SAY | {"seed": msgpack.Timestamp(1)})).code == "bad_message"


def test_an_extension(one):
    assert refused(one, msgpack.packb(SAY | {"seed": msgpack.ExtType(5, b"x")})).code == "bad_message"


def test_keys_that_are_no_text(one):
    assert refused(one, msgpack.packb({1: 2})).code == "bad_message"


def test_no_type(one):
    assert refused(one, packed(t=...)).code == "unknown_type"


def test_a_type_that_is_no_text(one):
    assert refused(one, packed(t=7)).code == "unknown_type"


def test_an_unknown_type(one):
    error = refused(one, packed(t="format_disk"))
    assert (error.code, error.id) == ("unknown_type", 1)


def test_a_type_that_only_the_daemon_sends(one):
    assert refused(one, codec.pack(m.Progress(id=1, state="x"))).code == "unknown_type"


def test_a_missing_key(one):
    assert refused(one, packed(seed=...)).code == "bad_message"


def test_a_key_too_many(one):
    assert refused(one, packed(path="/etc/passwd")).code == "bad_message"


def test_an_id_that_is_no_number(one):
    error = refused(one, packed(id="1"))
    assert (error.code, error.id) == ("bad_value", None)


def test_an_id_that_is_a_bool(one):
    assert refused(one, packed(id=True)).id is None


@pytest.mark.parametrize(
    "changes",
    [
        {"id": -1},
        {"id": 2**32},
        {"id": 2**64 - 1},
        {"text": b"bytes"},
        {"text": ""},
        {"text": None},
        {"speaker": -1},
        {"speaker": 100},
        {"speaker": 1.0},
        {"speaker": True},
        {"seed": 2**32},
        {"seed": 1.5},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"top_k": 0},
        {"top_k": 4097},
        {"top_p": 0},
        {"min_p": 1.1},
        {"guidance": -1},
        {"decay_frames": 0},
        {"preset": "loud"},
        {"model": ""},
        {"max_seconds": 0},
        {"max_seconds": 1e300},
    ],
    ids=str,
)
def test_a_value_out_of_its_range(one, changes):
    assert refused(one, packed(**changes)).code == "bad_value"


def test_text_that_is_not_utf_8(one):
    assert refused(one, packed().replace(b"two words", b"two \xff\xfe\xfd\xfc\xfb")).code == "bad_message"


def test_text_with_nothing_speakable(one):
    assert refused(one, packed(text="?! …")).code == "unspeakable"


def test_the_longest_text_and_one_byte_more(one):
    with Raw(one) as raw:
        raw.say(1, "a" * m.MAX_TEXT_BYTES)
        assert isinstance(raw.until(m.Accepted)[-1], m.Accepted)
        raw.send_bytes(packed(id=2, text="a" * (m.MAX_TEXT_BYTES + 1)))
        assert raw.until(m.Error)[-1].code == "bad_value"
        raw.ping()


def test_text_with_zeros_newlines_and_escapes_is_only_text(one):
    with Raw(one) as raw:
        raw.say(1, "a\0b\n\x1b[31m\u202e c")
        assert raw.until(m.Done)[-1].end == "eos"
    assert "[31m" not in one.log.read_text()  # never the user's text


def test_a_message_over_the_limit_cuts_off_its_sender_only(one):
    """msgpack/msgpack-python#360: sizes are capped, and the daemon lives."""
    with Raw(one) as big, Raw(one) as other:
        other.say(1, "last 39")
        other.until(m.Pcm)
        monitor = big.monitor()
        big.ping()
        big.send_bytes(b"\0" * (m.MAX_MESSAGE_BYTES + 1))
        assert monitor.poll(HANG_S * 1000), "still connected"
        assert other.until(m.Done)[-1].frames == 39
        other.ping()


def test_a_message_at_the_limit_is_answered(one):
    assert refused(one, b"\xc6" + struct.pack(">I", m.MAX_MESSAGE_BYTES - 5) + b"\0" * (m.MAX_MESSAGE_BYTES - 5))


# ---- many


class Weight:
    """Of the daemon's process. Growth is judged after a first round, which fills pools."""

    def __init__(self, home):
        self.process = psutil.Process(home.daemon.pid)
        self.rss_bytes, self.files = self.process.memory_info().rss, self.process.num_fds()

    def check(self) -> None:
        until(lambda: self.process.num_fds() <= self.files, "descriptors to be closed")
        assert self.process.memory_info().rss - self.rss_bytes < 16e6


GARBAGE = [b"", b"\0", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL"]


def connect_rudely(home, rng: random.Random, count: int) -> None:
    for _ in range(count):
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(str(home.socket))
            with contextlib.suppress(OSError):  # it may have closed already
                plain.sendall(rng.choice(GARBAGE) + rng.randbytes(rng.randrange(64)))
    with socket.socket(socket.AF_UNIX) as last:
        last.connect(str(home.socket))
        last.recv(1)  # its greeting: all before were taken off the backlog, which a DEALER that finds it full is not


def mutated(rng: random.Random, originals: list[bytes]) -> bytes:
    data = bytearray(rng.choice(originals))
    for _ in range(rng.randrange(1, 6)):
        where = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[where] = rng.randrange(256)
            case 1:
                del data[where:]
            case 2:
                data[where:where] = rng.randbytes(3)
        if not data:
            return b""
    return bytes(data)


def send_mutants(home, rng: random.Random, count: int) -> None:
    originals = [
        packed(),
        packed(id=3, seed=4, temperature=0.5, top_k=9, max_seconds=1.0),
        codec.pack(m.Hello(id=1, major=1, minor=0)),
        codec.pack(m.Cancel(id=1)),
        codec.pack(m.Ack(id=1, seq=3)),
        codec.pack(m.StatusRequest(id=1)),
        *map(codec.pack, VOICES),
    ]
    with Raw(home) as raw:
        for number in range(count):
            raw.send_bytes(mutated(rng, originals))
            if number % 50 == 49:
                raw.ping()


def storm(home, count: int) -> None:
    rng = random.Random(1)
    connect_rudely(home, rng, 1000)
    send_mutants(home, rng, 1000)
    weight = Weight(home)
    connect_rudely(home, rng, count)
    send_mutants(home, rng, count)
    with Raw(home) as raw:
        until(lambda: raw.ping().queued == 0, "those that parsed to leave")
        raw.say(1, "two words")
        assert raw.until(m.Done)[-1].frames == 4
    weight.check()


def test_raw_connections_and_mutated_messages(fake):
    storm(fake, 2000)


@pytest.mark.slow
def test_a_hundred_thousand_of_each(fake):
    storm(fake, 100_000)


def silent(home, count: int) -> None:
    """Connections that never say a word are closed by the handshake's limit."""
    weight = Weight(home)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            plain = stack.enter_context(socket.socket(socket.AF_UNIX))
            plain.connect(str(home.socket))
        with Raw(home) as raw:
            raw.ping()
        weight.check()


def test_connections_that_never_speak_are_closed(fake):
    silent(fake, 300)


def crowd(home, count: int) -> None:
    """All at once: each is served or told `busy`, none hangs."""
    with Raw(home) as raw:
        raw.ping()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(home)) for _ in range(count)]
        for client in clients:
            client.say(1, "two words")
        ends = [client.receive_end() for client in clients]
    assert {type(x) for x in ends} <= {m.Done, m.Error}
    assert {x.code for x in ends if isinstance(x, m.Error)} <= {"busy"}
    served = [x for x in ends if isinstance(x, m.Done)]
    assert len(served) >= min(count, 64) and {x.frames for x in served} == {4}


def test_fifty_clients_at_once(fake):
    crowd(fake, 50)


@pytest.mark.slow
def test_two_hundred_clients_at_once_again_and_again(fake):
    crowd(fake, 200)
    weight = Weight(fake)
    for _ in range(80):
        crowd(fake, 200)
    weight.check()


def test_clients_that_never_read_cost_one_window_each(home):
    home.daemon = home.fake(max_rows=32)
    with contextlib.ExitStack() as stack:
        sleepers = [stack.enter_context(Raw(home)) for _ in range(20)]
        weight = Weight(home)
        for sleeper in sleepers:
            sleeper.say(1, "last 100000")
        with Raw(home) as raw:
            until(lambda: raw.ping().parked == 20, "all to be parked")
            raw.say(1, "last 60")
            assert len(frames_of(raw.until(m.Done, ack=True))) == 60
        grown = weight.process.memory_info().rss - weight.rss_bytes
        assert grown < 20 * m.WINDOW_FRAMES * 3840 + 8e6
