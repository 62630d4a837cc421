"""pack and unpack: one flat msgpack map a message, exact keys, every value within its limit.

A message that is refused is never shown: it may nest 1,024 deep (repr overflows) or hold user text.
"""

import msgpack

from protocol.errors import ProtocolError
from protocol.messages import MAX_MESSAGE_BYTES, MAX_SPOKEN_BYTES, UINT32, Limit, Message

_TYPES = {"int": int, "float": (int, float), "str": str, "bin": bytes, "bool": bool}


def pack(message: Message) -> bytes:
    """The bytes of one message. Raises ProtocolError where a field is out of its limit."""
    body = {"t": message.t}
    for name, limit in message.limits().items():
        value = _checked(message.t, name, getattr(message, name), limit)
        if value is not None or not limit.since:
            body[name] = value
    return msgpack.packb(body, use_bin_type=True)


def unpack(data: bytes, table: dict[str, type[Message]]) -> Message:
    """The message in `data`, one of `table` (FROM_CLIENT or FROM_DAEMON). Raises ProtocolError, nothing else."""
    body = _read_map(data)
    request = body.get("id")
    if type(request) is not int or not 0 <= request <= UINT32:
        request = None
    cls = table.get(body["t"]) if isinstance(body.get("t"), str) else None
    if cls is None:
        raise ProtocolError("unknown_type", "the message type is not one this side knows", request)
    limits = cls.limits()
    body = {name: None for name, limit in limits.items() if limit.since} | body
    if body.keys() != limits.keys() | {"t"}:
        raise ProtocolError("bad_message", f"{cls.t}: its keys are not exactly t, {', '.join(limits)}", request)
    try:
        return cls(**{name: _checked(cls.t, name, body[name], limit) for name, limit in limits.items()})
    except ProtocolError as error:
        raise ProtocolError(error.code, error.message, request) from None


def _read_map(data: bytes) -> dict:
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError("bad_message", f"a message of {len(data)} bytes is over {MAX_MESSAGE_BYTES}")
    try:
        body = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_flat,
            max_array_len=0,  # no message holds one; nested, 64 at a time, 1 MiB of them took 70 MiB
            max_map_len=64,
            max_str_len=MAX_SPOKEN_BYTES,  # the longest of any field; _checked knows each field's own
            max_bin_len=MAX_MESSAGE_BYTES,
            max_ext_len=0,  # ext_hook never sees timestamps: refuse the kind
        )
    except ValueError:  # msgpack's every failure is one (measured on 300,000 mutated buffers)
        raise ProtocolError("bad_message", "not one msgpack map within its limits") from None
    if not isinstance(body, dict):
        raise ProtocolError("bad_message", "not a msgpack map")
    return body


def _flat(pairs: list[tuple]) -> dict:
    """A map of plain values, each key once. msgpack would take nested maps, and the last of two equal keys."""
    body = dict(pairs)
    if len(body) != len(pairs) or any(isinstance(value, dict) for value in body.values()):
        raise ValueError
    return body


def _checked(kind: str, name: str, value, limit: Limit):
    """`value` if it is within `limit`; the one place where types, ranges and sizes are judged."""
    if value is None and limit.optional:
        return None
    is_bool = isinstance(value, bool)
    if not isinstance(value, _TYPES[limit.kind]) or is_bool != (limit.kind == "bool"):
        raise ProtocolError("bad_value", f"{kind}.{name} must be {limit}")
    if limit.kind in ("int", "float"):
        if not limit.low <= value <= limit.high:  # false of NaN, too
            raise ProtocolError("bad_value", f"{kind}.{name} must be {limit}")
    elif limit.kind in ("str", "bin"):
        try:
            size = len(value if limit.kind == "bin" else value.encode())
        except UnicodeEncodeError:  # a lone surrogate
            raise ProtocolError("bad_value", f"{kind}.{name} must be valid UTF-8") from None
        if not limit.low <= size <= limit.high:
            raise ProtocolError("bad_value", f"{kind}.{name} is {size} bytes; it must be {limit}")
    return value
