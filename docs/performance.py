"""The section "Predicted" of docs/performance.md, from misod/weights/predict.py. The rest is written by hand."""

from pathlib import Path

from misod.weights import predict
from misod.weights.budget import frame_bytes, kv_bytes
from misod.weights.dims import MISO_8B

PAGE = Path(__file__).with_suffix(".md")
HEADING = "## Predicted\n"
PRECISIONS = ("q4", "mixed", "q8")


def page() -> str:
    """The page with this section as it is computed now."""
    before, _, rest = PAGE.read_text().partition(HEADING)
    _, heading, after = rest.partition("\n## ")
    return before + HEADING + section() + heading + after


def section() -> str:
    reads = ", ".join(f"{p} {(frame_bytes(MISO_8B, p) + kv_bytes(MISO_8B, 500)) / 1e9:.2f} GB" for p in PRECISIONS)
    return f"""
For one row, 500 positions: the frame takes at least the longer, and at most the sum, of bytes / bandwidth and
launches x the cost of one.

    bytes     = weights (docs/precision.md) and 65 MB of keys and values: {reads}
    launches  = {predict.launches(MISO_8B):,}: 3,702 (above) and 64 copies
    one       = 7.5 us on an H200 with CUDA (measured); {predict.LAUNCH_US:g} us on Metal (a guess, not measured)

{table()}

Milliseconds a frame; below 80 is faster than real time. Nothing of this table is a measurement: on a Mac,
`misoctl bench` shows what was predicted for it beside what it does. Chips of one name with fewer GPU cores may have
less bandwidth than stated here. The code is misod/weights/predict.py; `python -m docs.render` makes this section.
"""


def table() -> str:
    chips: dict[int, list[str]] = {}
    for chip, gb_per_s in predict.GB_PER_S.items():
        chips.setdefault(gb_per_s, []).append(chip)
    rows = [["bandwidth", "chips", *PRECISIONS], ["---"] * (2 + len(PRECISIONS))]
    for gb_per_s in sorted(chips):
        spans = [predict.frame(MISO_8B, precision, gb_per_s) for precision in PRECISIONS]
        cells = [f"{span.low_ms:.0f} to {span.high_ms:.0f}" for span in spans]
        rows.append([f"{gb_per_s} GB/s", ", ".join(chips[gb_per_s]), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
