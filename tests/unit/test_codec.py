"""The codec takes what the wire spec says, and answers all else with ProtocolError."""

import random
import struct
from dataclasses import FrozenInstanceError, replace

import msgpack
import pytest

from protocol import codec
from protocol import messages as m
from protocol.errors import ERRORS, ProtocolError

MESSAGES = [
    *((m.FROM_CLIENT, cls) for cls in m.FROM_CLIENT.values()),
    *((m.FROM_DAEMON, c) for c in m.FROM_DAEMON.values()),
]
FIELDS = [(table, cls, name, limit) for table, cls in MESSAGES for name, limit in cls.limits().items()]
NUMBERS = [case for case in FIELDS if case[3].kind in ("int", "float")]
SIZED = [case for case in FIELDS if case[3].kind in ("str", "bin")]


def value_of(limit: m.Limit, size: float):
    """`size` is the value of a number, or how many bytes a str or bin has."""
    return {"int": int, "float": float, "str": lambda n: "x" * int(n), "bin": lambda n: bytes(int(n)), "bool": bool}[
        limit.kind
    ](size)


def example(cls: type[m.Message]) -> m.Message:
    return cls(**{name: value_of(limit, max(limit.low, 1)) for name, limit in cls.limits().items()})


def body_of(message: m.Message) -> dict:
    return msgpack.unpackb(codec.pack(message))


def ids(case) -> str:
    return f"{case[1].__name__}.{case[2]}" if len(case) > 2 else case[1].__name__


def refused(data: bytes, table=m.FROM_CLIENT) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        codec.unpack(data, table)
    assert caught.value.code in ERRORS
    return caught.value


@pytest.mark.parametrize("case", MESSAGES, ids=ids)
def test_every_message_comes_back_equal(case):
    table, cls = case
    message = example(cls)
    assert codec.unpack(codec.pack(message), table) == message
    optional = {name: None for name, limit in cls.limits().items() if limit.optional}
    assert codec.unpack(codec.pack(replace(message, **optional)), table) == replace(message, **optional)


@pytest.mark.parametrize("case", NUMBERS, ids=ids)
def test_a_number_is_taken_at_its_limits_and_refused_beyond(case):
    table, cls, name, limit = case
    step = 1 if limit.kind == "int" else max(1e-3, abs(limit.high) * 1e-9)
    body = body_of(example(cls))
    for inside in (limit.low, limit.high):
        body[name] = value_of(limit, inside)
        assert getattr(codec.unpack(msgpack.packb(body), table), name) == inside
    for outside in (limit.low - step, limit.high + step):
        body[name] = value_of(limit, outside)
        error = refused(msgpack.packb(body), table)
        assert (error.code, str(limit) in error.message) == ("bad_value", True)
        assert error.id == (None if name == "id" else 1)
        with pytest.raises(ProtocolError):
            codec.pack(replace(example(cls), **{name: value_of(limit, outside)}))


@pytest.mark.parametrize("case", SIZED, ids=ids)
def test_bytes_are_taken_at_the_limit_and_refused_beyond(case):
    table, cls, name, limit = case
    body = body_of(example(cls))
    body[name] = value_of(limit, limit.high)
    assert len(getattr(codec.unpack(msgpack.packb(body), table), name)) == limit.high
    outside = [limit.high + 1] + ([limit.low - 1] if limit.low else [])
    for size in outside:
        body[name] = value_of(limit, size)
        refused(msgpack.packb(body), table)
        with pytest.raises(ProtocolError):
            codec.pack(replace(example(cls), **{name: value_of(limit, size)}))


def test_a_text_is_measured_in_bytes_of_utf8_and_an_oversize_one_names_its_request():
    fits = m.Say(id=3, text="é" * (m.MAX_TEXT_BYTES // 2), speaker=0)
    assert codec.unpack(codec.pack(fits), m.FROM_CLIENT) == fits
    body = body_of(fits) | {"text": fits.text + "é"}
    error = refused(msgpack.packb(body))
    assert (error.code, error.id) == ("bad_value", 3)
    assert fits.text not in error.message


@pytest.mark.parametrize("case", FIELDS, ids=ids)
def test_a_value_of_another_type_is_refused(case):
    table, cls, name, limit = case
    wrong = {"int": (True, 1.0, "1"), "float": (True, "1"), "str": (b"x", 1), "bin": ("xx", 1), "bool": (1, "x")}
    body = body_of(example(cls))
    for value in (*wrong[limit.kind], *(() if limit.optional else (None,))):
        assert refused(msgpack.packb(body | {name: value}), table).code == "bad_value"


@pytest.mark.parametrize("case", [c for c in FIELDS if c[3].kind == "float"], ids=ids)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_float_is_finite(case, value):
    table, cls, name, _ = case
    assert refused(msgpack.packb(body_of(example(cls)) | {name: value}), table).code == "bad_value"
    with pytest.raises(ProtocolError):
        codec.pack(replace(example(cls), **{name: value}))


def test_a_float_field_takes_a_whole_number_as_javascript_writes_it():
    body = body_of(m.Say(id=1, text="x", speaker=0)) | {"temperature": 1}
    assert codec.unpack(msgpack.packb(body), m.FROM_CLIENT).temperature == 1


def test_an_integer_beyond_every_float_is_out_of_range_and_no_crash():
    with pytest.raises(ProtocolError):
        codec.pack(m.Say(id=10**400, text="x", speaker=0))
    with pytest.raises(ProtocolError):
        codec.pack(m.Say(id=1, text="x", speaker=0, temperature=10**400))


@pytest.mark.parametrize("case", MESSAGES, ids=ids)
def test_the_keys_are_exactly_those_of_the_type(case):
    table, cls = case
    body = body_of(example(cls))
    for name in (name for name, limit in cls.limits().items() if not limit.since):
        error = refused(msgpack.packb({k: v for k, v in body.items() if k != name}), table)
        assert (error.code, error.id) == ("bad_message", None if name == "id" else 1)
    assert refused(msgpack.packb(body | {"more": 1}), table).code == "bad_message"
    assert refused(msgpack.packb({k: v for k, v in body.items() if k != "t"}), table).code == "unknown_type"


@pytest.mark.parametrize("case", [c for c in FIELDS if c[3].since], ids=ids)
def test_a_field_that_a_later_version_brought_is_missing_where_it_is_nil(case):
    """So that a side which never heard of it takes the message."""
    table, cls, name, _ = case
    without = replace(example(cls), **{name: None})
    assert name not in body_of(without) and name in body_of(example(cls))
    assert codec.unpack(codec.pack(without), table) == without
    assert codec.unpack(msgpack.packb(body_of(without) | {name: None}), table) == without


def test_a_type_of_the_other_direction_or_of_none_is_unknown():
    assert refused(codec.pack(example(m.Done))).code == "unknown_type"
    assert refused(codec.pack(example(m.Say)), m.FROM_DAEMON).code == "unknown_type"
    for kind in ("shout", "", 1, None, b"say"):
        error = refused(msgpack.packb({"t": kind, "id": 9}))
        assert (error.code, error.id) == ("unknown_type", 9)


@pytest.mark.parametrize("request_id", [True, -1, 2**32, 1.0, "1", None])
def test_an_error_names_no_request_where_the_id_is_none(request_id):
    assert refused(msgpack.packb({"t": "shout", "id": request_id})).id is None


def test_a_lone_surrogate_is_refused_in_both_directions():
    body = body_of(m.Say(id=1, text="abc", speaker=0))
    assert refused(msgpack.packb(body).replace(b"abc", b"\xed\xa0\x80")).code == "bad_message"
    with pytest.raises(ProtocolError) as caught:
        codec.pack(m.Say(id=1, text="\ud800", speaker=0))
    assert caught.value.code == "bad_value"


HELLO = codec.pack(m.Hello(id=1, major=1, minor=0))
NOT_ONE_MAP = {
    "nothing": b"",
    "a number": msgpack.packb(1),
    "an array": msgpack.packb([1]),
    "text": msgpack.packb("hello"),
    "cut off": HELLO[:-1],
    "two in one frame": HELLO + HELLO,
    "one byte more": HELLO + b"\x00",
    "never used byte": b"\xc1",
    "a map in it": msgpack.packb({"t": "hello", "id": 1, "major": {}, "minor": 0}),
    "an array in it": msgpack.packb({"t": "hello", "id": 1, "major": [1], "minor": 0}),
    "a key twice": b"\x83\xa1t\xa5hello\xa2id\x01\xa2id\x02",
    "a number as key": msgpack.packb({1: 2, "t": "hello"}),
    "65 keys": msgpack.packb({f"k{i}": i for i in range(65)}),
    "5,000 maps deep": b"\x81\xa1a" * 5000 + b"\xc0",
    "1,000 arrays deep": b"\x81\xa1t" + b"\x91" * 1000 + b"\xc0",
    "an array of 4 billion": b"\x81\xa1t\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\x81\xa1t\xdb\xff\xff\xff\xff",
    "a bin of 4 GB": b"\x81\xa1t\xc6\xff\xff\xff\xff",
    "an extension": msgpack.packb({"t": msgpack.ExtType(5, b"x")}),
    "a timestamp": msgpack.packb({"t": msgpack.Timestamp(1)}),
    "a timestamp of 12 bytes": b"\x81\xa1t\xc7\x0c\xff" + struct.pack("!Iq", 10**9 - 1, 2**62),
}


@pytest.mark.parametrize("data", NOT_ONE_MAP.values(), ids=NOT_ONE_MAP.keys())
def test_what_is_not_one_flat_map_is_a_bad_message(data):
    error = refused(data)
    assert (error.code, error.id) == ("bad_message", None)


def test_a_message_is_at_most_its_limit_long():
    assert refused(b"\xc0" * m.MAX_MESSAGE_BYTES).code == "bad_message"
    error = refused(b"\xc0" * (m.MAX_MESSAGE_BYTES + 1))
    assert str(m.MAX_MESSAGE_BYTES) in error.message


def test_small_bytes_do_not_become_large_memory():
    """64 arrays of 64 arrays of ...: 1 MiB of these took 75 MiB and half a second while short arrays were let in."""
    import tracemalloc

    tree = b"\x90"
    for _ in range(3):
        tree = b"\xdc\x00\x40" + tree * 64
    data = b"\x84" + b"".join(b"\xa1" + bytes([97 + i]) + tree for i in range(4))
    assert len(data) > 1 << 20
    tracemalloc.start()
    refused(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def mutated(rng: random.Random, data: bytes) -> bytes:
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                data[at:at] = data[: rng.randint(1, 32)]
    return bytes(data)


def test_20000_mutated_messages_raise_nothing_but_protocol_errors():
    rng = random.Random(7)
    seeds = [(table, codec.pack(example(cls))) for table, cls in MESSAGES]
    taken = 0
    for i in range(20_000):
        table, seed = seeds[i % len(seeds)]
        try:
            codec.unpack(mutated(rng, seed), table)
            taken += 1
        except ProtocolError as error:
            assert error.code in ERRORS
    assert 0 < taken < 20_000  # some mutations leave a valid message: the fuzz is near the edge


def test_a_message_is_known_by_its_fields_and_stays_as_it_was_made():
    ack = m.Ack(id=1, seq=2)
    assert ack == m.Ack(seq=2, id=1) and hash(ack) == hash(m.Ack(seq=2, id=1))
    assert ack != m.Ack(id=1, seq=3) and ack != m.Cancel(id=1)
    assert replace(ack, seq=3) == m.Ack(id=1, seq=3)
    assert repr(ack) == "Ack(id=1, seq=2)"
    with pytest.raises(FrozenInstanceError):
        ack.seq = 3
    with pytest.raises(FrozenInstanceError):
        del ack.seq


@pytest.mark.parametrize("fields", [{"id": 1}, {"id": 1, "seq": 2, "more": 3}])
def test_a_message_is_not_made_of_too_few_or_other_fields(fields):
    with pytest.raises(TypeError, match=r"seq|more"):
        m.Ack(**fields)
