"""The fault campaign: `python benchmarks/faults --kills 200 --mutations 10000 --seed 1 --json faults.json`.

Commands of onespike are killed at random moments, every file that they read is damaged, disks are full or read-only,
and files carry code. Nothing may be lost, read as something else, executed, or end in a traceback.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
os.environ["PYTHONPATH"] = os.pathsep.join((sys.path[0], os.environ.get("PYTHONPATH", "")))

import damaged
import disks
import hostile
import kills
import pictures
import stage
import torch
from commands import SECONDS, Words
from damaged import Fault

SHARES = {
    "records": 18,
    "tensors": 16,
    "checkpoints": 6,
    "configurations": 4,
    "annotations": 3,
    "images": 5,
    "exported": 20,
    "recipes": 15,
    "plans": 4,
    "texts": 5,
    "requests": 3,
    "uploads": 1,
}
"""How the mutations are shared out, in percent."""
BRIEF = ("kills", "records", "tensors", "checkpoints", "images")
FIXED = {"disks": disks.COUNT, "executions": hostile.COUNT}
WORDS = {"kills": kills.case, "images": pictures.case, "disks": disks.case, "executions": hostile.case}
KINDS = ("lost", "corrupt", "traceback", "executed", "crash", "hang", "unclear", "half-written")


@dataclasses.dataclass(frozen=True)
class Ready:
    """What every process of the campaign knows."""

    work: Path
    seed: int
    keep: bool

    def perform(self, case: tuple[str, int]) -> dict[str, object]:
        """One case in a folder of its own; its random numbers depend on seed, group and number alone."""
        group, number = case
        began = time.monotonic()
        rng = Random(f"{self.seed}:{group}:{number}")  # noqa: S311 - no secret
        folder = Path(tempfile.mkdtemp(prefix=f"{group}-{number}-", dir=self.work))
        try:
            judge = WORDS.get(group)
            found = judge(self.work / "stage", folder, number, rng) if judge else None
            done, faults = found or damaged.case(self.work / "stage", folder, group, number, rng)
        except Exception as error:  # noqa: BLE001 - the campaign itself failed: a fault too, and the others go on
            done, faults = repr(error), [Fault("campaign", repr(error), (), "")]
        finally:
            if not self.keep:
                shutil.rmtree(folder, ignore_errors=True)
        return {
            "case": f"{group}:{number}",
            "done": done,
            "seconds": round(time.monotonic() - began, 2),
            "faults": [dataclasses.asdict(fault) for fault in faults],
        }


def cases(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """All cases in an order that mixes the groups, so that an early end has seen some of each."""
    counts = {"kills": options.kills, **FIXED}
    counts |= {group: round(options.mutations * share / 100) for group, share in SHARES.items()}
    if options.brief:
        counts = {group: counts[group] for group in BRIEF}
    if options.only:
        counts = {group: count for group, count in counts.items() if group in options.only}
    found = [((n + 0.5) / count, group, n) for group, count in counts.items() for n in range(count)]
    yield from ((group, number) for _, group, number in sorted(found))


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    work = Path(options.work or tempfile.mkdtemp(prefix="onespike-faults-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    _warm(work, options)
    ready = Ready(work, options.seed, bool(options.case))
    if options.case:
        group, _, number = options.case.partition(":")
        print(json.dumps(ready.perform((group, int(number))), indent=1, ensure_ascii=False))
        print(f"left in {work}", flush=True)
        os._exit(0)
    log = work / f"seed-{options.seed}.jsonl"
    known = (
        [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    )
    finished = {row["case"] for row in known}
    waiting = [case for case in cases(options) if f"{case[0]}:{case[1]}" not in finished]
    wanted = {f"{group}:{number}" for group, number in cases(options)}
    rows = [row for row in known if row["case"] in wanted]
    from onespike.cli.output import progress

    with (
        multiprocessing.get_context("fork").Pool(options.jobs) as pool,
        log.open("a", encoding="utf-8") as file,
    ):
        for row in progress("cases", len(waiting))(pool.imap_unordered(ready.perform, waiting)):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            for fault in row["faults"]:
                print(f"{row['case']} {fault['kind']}: {fault['done']}", flush=True)
    summary = _summary(rows, options, work)
    if options.json:
        Path(options.json).write_text(
            json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    print(json.dumps({k: v for k, v in summary.items() if k != "failures"}, indent=1))
    if not options.work:
        shutil.rmtree(work)
    sys.stdout.flush()
    os._exit(
        1 if summary["failures"] else 0
    )  # triton, which some libraries import, complains at a regular end


def _warm(work: Path, options: argparse.Namespace) -> None:
    """Build the stage, learn what commands give on it, and import here what they import, so that forks need not."""
    import onespike.cli.app
    import onespike.deploy.exports
    import onespike.deploy.integer
    import onespike.diagnosis
    import onespike.reports.live
    import onespike.reports.record
    import onespike.runs.searching  # noqa: F401

    place = work / "stage"
    stage.build(place, brief=options.brief)
    learn = partial(damaged.learn, place)
    for words, result, names in _stored(
        work / "read.jsonl", damaged.BRIEF if options.brief else damaged.SEES, learn, options
    ):
        damaged.WHOLE[tuple(words)] = result
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    wanted = [kills.choice(place, number)[0].words for group, number in cases(options) if group == "kills"]
    wanted += [chosen.words for chosen in disks.WRITING] if "disks" in dict(cases(options)) else []
    for words, result, seconds in _stored(
        work / "killed.jsonl", wanted, partial(kills.learn, place), options
    ):
        kills.WHOLE[tuple(words)] = result, seconds
    gc.collect()
    gc.freeze()  # forks then share this memory


def _stored(
    file: Path, commands: Iterable[Words], learn: Callable[[Words], Any], options: argparse.Namespace
) -> list[Any]:
    """What was learned of each command, its words first; a file keeps it for a campaign that goes on later."""
    file.touch()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    known = {tuple(row[0]) for row in rows}
    waiting = [words for words in dict.fromkeys(commands) if words not in known]
    with (
        multiprocessing.get_context("fork").Pool(options.jobs) as pool,
        file.open("a", encoding="utf-8") as store,
    ):
        for row in pool.imap_unordered(learn, waiting):
            print(json.dumps(row), file=store, flush=True)
            rows.append(row)
    return rows


def _summary(rows: list[dict], options: argparse.Namespace, work: Path) -> dict[str, object]:
    """Counts by group and kind, and every failure with the command that repeats it."""
    groups = collections.Counter(row["case"].partition(":")[0] for row in rows)
    kinds = collections.Counter(fault["kind"] for row in rows for fault in row["faults"])
    brief = "--brief " if options.brief else ""
    again = f"python benchmarks/faults {brief}--seed {options.seed} --work DIR --case"
    return {
        "seed": options.seed,
        "kills": groups["kills"],
        "mutations": sum(groups[group] for group in SHARES),
        "cases": dict(sorted(groups.items())),
        "faults": {kind: kinds[kind] for kind in dict.fromkeys((*KINDS, *kinds))},
        "seconds per command at most": SECONDS,
        "failures": [{**row, "repeat": f"{again} {row['case']}"} for row in rows if row["faults"]],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=("kills", *SHARES, *FIXED), metavar="GROUP")
    parser.add_argument("--brief", action="store_true", help="a smoke test: only what one small run serves")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", help="a folder that is kept: a campaign that was stopped goes on there")
    parser.add_argument("--case", metavar="GROUP:NUMBER", help="one case only; its folder is left to look at")
    parser.add_argument("--json", metavar="FILE", help="where the counts and every failure are written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
