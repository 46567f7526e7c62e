"""Mixed traffic for long: python tests/perf/soak.py [--seconds 180] [--clients 48]. Exits with 1 at a fault."""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.soak import FINE, Soak

MOST_GROWTH = 16 * 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = Soak(options.seconds, options.clients, options.seed).run()
    print("acts     ", dict(sorted(report.acts.items())))
    print("answers  ", dict(sorted(report.statuses.items())))
    print("good     ", dict(sorted(report.good.items())))
    print(f"engine    {report.accepted} accepted, {report.ended} ended, {report.preemptions} preemptions")
    resident = [round(each / 2**20, 1) for each in report.resident]
    print(f"memory    {report.grown / 2**20:+.1f} MiB since a third of the time; MiB from then on: {resident}")
    print("problems ", report.problems[:10] or "none")
    unforeseen = set(report.statuses) - FINE - {"0", "499"}
    wrong = report.problems or unforeseen or report.accepted != report.ended or report.grown > MOST_GROWTH
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
