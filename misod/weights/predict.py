"""How long a frame of the 8B takes on any Mac: arithmetic from its chip's bandwidth. Imports no mlx.

The one place for it: `misoctl bench` and docs/performance.md ask here. A frame takes at least the longer, and at most
the sum, of the time to read its bytes and the time to launch its primitives.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from misod.weights.budget import CONTEXT, frame_bytes, kv_bytes
from misod.weights.dims import ModelArgs

# GB/s of unified memory as Apple states it, of the chip's full version. An M3 Max with 30 GPU cores has 300, an M4 Max
# with 32 has 410: brand_string does not tell them apart.
GB_PER_S = {
    "M1": 68, "M2": 100, "M3": 100, "M4": 120, "M5": 153,
    "M1 Pro": 200, "M2 Pro": 200, "M3 Pro": 150, "M4 Pro": 273, "M5 Pro": 307,
    "M1 Max": 400, "M2 Max": 400, "M3 Max": 400, "M4 Max": 546, "M5 Max": 614,
    "M1 Ultra": 800, "M2 Ultra": 800, "M3 Ultra": 819,
}  # fmt: skip
REST_A_CODEBOOK = (3702 + 64 - 12 * 280) / 32
LAUNCH_US = 3.0  # of one primitive on Metal: a guess, nobody has measured it here


@dataclass(frozen=True)
class Frame:
    """Milliseconds a frame of one speaker, at best and at most."""

    low_ms: float
    high_ms: float


def chip_of(brand: str) -> str | None:
    """ "Apple M2 Pro", as sysctl machdep.cpu.brand_string says -> "M2 Pro"; None where its bandwidth is not known."""
    found = re.fullmatch(r"Apple (M\d+(?: (?:Pro|Max|Ultra))?)", brand.strip())
    return found[1] if found and found[1] in GB_PER_S else None


def launches(args: ModelArgs) -> int:
    """Primitives that launch work for a frame of one row, counted for the 8B (docs/performance.md).

    12 a layer and position: two norms, four products, a rotation, a write, an attention, a gate and two sums. The rest,
    heads and draws and the joining of codes and logits, goes with the codebooks.
    """
    K = args.audio_num_codebooks
    positions = args.backbone.num_layers + (K - 1) * args.decoder.num_layers
    return 12 * positions + round(REST_A_CODEBOOK * K)


def frame(args: ModelArgs, precision: str, gb_per_s: float, launch_us: float = LAUNCH_US) -> Frame:
    """One speaker with CONTEXT positions behind it."""
    read_ms = (frame_bytes(args, precision) + kv_bytes(args, CONTEXT)) / gb_per_s / 1e6
    launch_ms = launches(args) * launch_us / 1e3
    return Frame(max(read_ms, launch_ms), read_ms + launch_ms)


def of_model(directory: Path, precision: str, brand: str | None) -> dict:
    """For JSON. `brand`: what sysctl says, None where there is none. Where there is no figure, `why` there is none."""
    if brand is None or (chip := chip_of(brand)) is None:
        of = "this machine's memory" if brand is None else brand
        return {"why": f"no prediction: the bandwidth of {of} is not known"}
    try:
        args = ModelArgs.from_dict(json.loads((directory / "config.json").read_bytes()))
    except KeyError:
        return {"why": f"no prediction: {directory.name} is of another architecture"}
    made = frame(args, precision, GB_PER_S[chip])
    return {"chip": chip, "gb_per_s": GB_PER_S[chip], "low_ms": made.low_ms, "high_ms": made.high_ms}
