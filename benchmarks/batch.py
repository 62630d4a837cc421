"""Frames a second by the number of rows that speak at once, through a real daemon, codec and all.

  python -m benchmarks.batch [--rows 1 2 4 8] [--seconds S] [--rounds N] [--json FILE] [--plot FILE]

12.5 frames a second for each row is as fast as it is spoken. The numbers of rows take turns; the ratio, the median over
the rounds, is to the first of them: how much more speech the same machine makes of it in company.
"""

from benchmarks.figures import arguments, in_turn, keep, own_daemon, show
from misoctl.bench import FRAME_MS, speed
from misoctl.client import Client
from protocol.paths import find_paths


def main() -> None:
    p = arguments(__doc__, rounds=5)
    p.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    p.add_argument("--seconds", type=float, default=3.0, help="Of speech a row.")
    a = p.parse_args()

    def frames_a_second(client: Client, rows: int) -> float:
        return speed(client, a.model, rows, a.seconds).together * 1e3 / FRAME_MS

    with own_daemon(a.model), Client(find_paths()) as client:
        found = in_turn(a.rounds, {f"{n} rows": lambda n=n: frames_a_second(client, n) for n in a.rows})
    show(found, "frames a second, together")
    keep(a, found, "rows at once", "frames a second, together")


if __name__ == "__main__":
    main()
