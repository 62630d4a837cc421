"""What a client is told of its request: each `piece`, `done`, the receipt, or `error`. All always fit the wire."""

import struct
from dataclasses import asdict

from misod import options
from misod.engine import Row
from misod.orders import Piece, Ready
from misod.scheduler import Job
from misod.session import Session
from protocol import messages as m

MAX_LINE_BYTES = 1024


def fit(text: str, max_bytes: int = MAX_LINE_BYTES) -> str:
    """`text` as valid UTF-8 of at most `max_bytes`: a path may hold bytes that are none, a reason may be long."""
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def error(request: int | None, code: str, message: str) -> m.Error:
    return m.Error(id=request, code=code, message=fit(message) or "no reason was given")


def piece(request: int, begun: Piece) -> m.Piece:
    spoken = fit(begun.spoken, m.MAX_SPOKEN_BYTES)
    numbers = {"number": begun.number, "sentence": begun.sentence}
    return m.Piece(id=request, **numbers, spoken=spoken, spans=_packed(begun.spans))


def receipt(session: Session, job: Job, end: str, ready: Ready) -> m.Done:
    """Frames and samples are those sent: after a cancel the last ones made stay here."""
    seconds, first_s = session.sent_samples / ready.sample_rate, session.first_pcm_s
    made_s, leveller = job.samples.total / ready.sample_rate, job.samples.leveller
    return m.Done(
        id=session.id,
        end=end,
        frames=session.sent,
        samples=session.sent_samples,
        seconds=seconds,
        rate=ready.sample_rate,
        seed=session.seed,
        speaker=session.speaker,
        voice=session.voice,
        session=session.dialogue,
        engine=fit(ready.info.engine, 64),
        model=fit(ready.info.model, 256),
        digest=fit(ready.info.digest, 128),
        ttfa_ms=None if first_s is None else (first_s - session.said_s) * 1000,
        rtf=job.busy_s / made_s if made_s else None,
        lufs=leveller.output_lufs if leveller else None,
        gain_db=leveller.gain_db if leveller else None,
        clipped=job.samples.clipped,
        nonfinite=job.samples.nonfinite,
        **_of(job.row, ready.info.engine),
    )


def _of(row: Row | None, engine: str) -> dict:
    """What only a row knows; None: the request never had one."""
    if row is None:
        none = {"voice_digest": "", "dropped": 0, "mended": "", "spoken": "", "spans": b"", "unread": 0}
        return none | {"quick_digest": None, "not_quick": None}
    style = asdict(row.style)
    return {name: style[name] for name in options.own(style, engine)} | {
        "voice_digest": row.voice_digest,
        "dropped": row.dropped,
        "mended": fit(", ".join(row.mended), 4096),
        "spoken": fit(" ".join(row.spoken), m.MAX_SPOKEN_BYTES),
        "spans": _packed(row.spans),
        "unread": row.unread,
        "quick_digest": fit(row.quick_digest, 128) or None,
        "not_quick": fit(row.not_quick) or None,
    }


def _packed(spans: list[tuple[int, int, int, int]]) -> bytes:
    """As many as the wire takes."""
    numbers = [number for span in spans[: m.MAX_SPANS_BYTES // 16] for number in span]
    return struct.pack(f"<{len(numbers)}I", *numbers)
