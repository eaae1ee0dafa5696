"""Every format of runs, as a table: size, spikes compared and different, answers, milliseconds.

python benchmarks/exports.py RUN=DATA … [--formats onnx,pt2] [--limit 8] [--batch-size 4]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from onespike.deploy.exports import FORMATS
from onespike.errors import OnespikeError
from onespike.runs.export_run import export_run

HEAD = "| network | format | form | runtime | MB | counts compared | differ | answers that differ | ms there | ms here |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN=DATA")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4)
    given = parser.parse_args()
    print(HEAD, "|---" * 10 + "|", sep="\n", flush=True)
    for text in given.runs:
        run, _, data = text.partition("=")
        for name in given.formats.split(","):
            for integer in FORMATS[name].forms:
                row(Path(run), data or None, name, integer, given.limit, given.batch_size)


def row(run: Path, data: str | None, name: str, integer: bool, limit: int, batch_size: int) -> None:
    start = f"| {run.name} | {name} | {'integer' if integer else 'float'} |"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"network{FORMATS[name].suffix}"
        try:
            done = export_run(run, name, out, data=data, limit=limit, integer=integer, batch_size=batch_size)
        except OnespikeError as error:
            print(start, f"refused: {error} ||||||||", flush=True)
            return
    found, times = done.comparison, done.milliseconds
    print(
        f"{start} {done.runtime} | {done.bytes / 1e6:.2f} | {found.counts:,} | {found.differ:,} | "
        f"{found.answers_differ} of {found.inputs} | {times['file']:.0f} | {times['onespike']:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
