"""Mutations: one file is damaged, and a command reads it. It must be refused, or give what the whole file gives."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import mutate
from commands import Words, copy_of, result_of, run
from mutate import Damage
from stage import (
    ABLATE,
    COMPARE,
    CONVERT,
    DETECT,
    EVALUATE,
    GENERATE,
    PUSH,
    REPORT,
    REPRODUCE,
    SEARCH,
    SERVE,
    TUNE,
    WRITE,
)

Change = Callable[[bytes, Random], Damage]


@dataclass(frozen=True)
class Fault:
    """What went wrong in a case: its kind, what had been done, by which command, and what that said."""

    kind: str
    done: str
    words: Words
    said: str


@dataclass(frozen=True)
class Reading:
    """A file of the stage, a command that reads it, and how it is damaged.

    Attributes:
        file: what is damaged.
        words: the command.
        change: the damage.
        exact: whether damage may pass only with the same result. It may change the result only where nothing can
            tell it from an intended change: a record sealed again, or a format without a checksum.
    """

    file: str
    words: Words
    change: Change
    exact: bool


def fields(data: bytes, rng: Random) -> Damage:
    return mutate.one_field(data, rng, sealed_again=False)


def resealed(data: bytes, rng: Random) -> Damage:
    return mutate.one_field(data, rng, sealed_again=True)


def modest(data: bytes, rng: Random) -> Damage:
    return mutate.one_field(data, rng, sealed_again=True, values=mutate.MODEST)


LOAD: Words = ("load", "run")
INSPECT: Words = ("inspect", "run")
VERIFY: Words = ("doctor", "run", "--data", "images", "--images", "2")
DOCTOR: Words = ("doctor", "run", "--data", "images", "--json", "out.json")
CHECK: Words = ("export", "--verify", "exported")
RESUME: Words = (*SEARCH, "--resume")
AFRESH: Words = (*CONVERT, "--out", "new")
MAPPED: Words = (*EVALUATE, "--device-map", "map/map.json")
SCORE: Words = ("evaluate", "text", "--data", "story/story.txt", "--json", "out.json")
RECIPES = ("recipes/a.yaml", "recipes/a.json")
CHECKPOINTS = ("w.safetensors", "w.pth", "training.pth", "old.pth")


def weighed(name: str) -> Words:
    """`convert` with a checkpoint."""
    return (*CONVERT[:2], "--weights", f"weights/{name}", *CONVERT[4:], "--out", "new")


def by(recipe: str) -> Words:
    """`convert` with a recipe file."""
    return (*CONVERT[:4], *CONVERT[6:], "--recipe", recipe, "--out", "new")


SEES: dict[Words, tuple[str, tuple[str, ...]]] = {
    LOAD: ("", ("run",)),
    INSPECT: ("", ("run",)),
    EVALUATE: ("out.json", ("run", "images")),
    VERIFY: ("", ("run", "images")),
    DOCTOR: ("out.json", ("run", "images")),
    REPORT: ("run/report/report.json", ("run", "images")),
    COMPARE: ("both/compare.json", ("run", "run2")),
    RESUME: ("out.json#best", ("run", "images")),
    ABLATE: ("out.json", ("run", "images", "cal")),
    REPRODUCE: ("reps/table-percentile.json", ("reps", "net", "images")),
    TUNE: ("tuned/run.json#files", (".tuned.passes", "net", "cal")),
    AFRESH: ("new/run.json#files", ("net", "cal")),
    DETECT: ("out.json", ("det", "scenes")),
    MAPPED: ("out.json", ("run", "images", "map")),
    **{weighed(n): ("new/run.json#files", ("net", "cal", "weights")) for n in CHECKPOINTS},
    SCORE: ("out.json", ("text", "story")),
    GENERATE: ("out.json", ("text",)),
    WRITE: ("text/run.json#files", ("writer", "story")),
    SERVE: ("out.json", ("run", "asked")),
    PUSH: ("hub/stored.json", ("run", "hub")),
    ("follow", "."): ("", ("whole", "planned")),
    ("follow", "half"): ("half/whole/report/report.json", ("half", "planned")),
    ("replay", "exported"): ("", ("exported",)),
    ("integers", "exported"): ("", ("exported",)),
    CHECK: ("", ("exported", "exported.verified.json")),
    **{("recipe", name): ("", ("recipes",)) for name in RECIPES},
    **{by(name): ("new/run.json#files", ("net", "cal", "recipes")) for name in RECIPES},
}
"""Command → where its result stands, and which folders it reads."""


def both(file: str, *commands: Words) -> list[Reading]:
    """A record of onespike's own: bytes, fields, and fields that are sealed again."""
    kinds = ((mutate.some_bytes, True), (fields, True), (resealed, False))
    return [Reading(file, words, change, exact) for words in commands for change, exact in kinds]


def own_records() -> list[Reading]:
    return [
        *both("run/run.json", *[LOAD] * 6, INSPECT, EVALUATE),
        *both("run/run.json", REPORT, DOCTOR, VERIFY, RESUME, ABLATE, COMPARE)[2::3],
        *both("run/search/search.json", EVALUATE),
        *both("run/ablation/ablation.json", ABLATE),
        *both("run/report/report.json", COMPARE),
        *both("reps/measured.json", REPRODUCE),
        *[Reading("run/search/study.db", RESUME, mutate.some_bytes, True)] * 3,
    ]


def tensors() -> list[Reading]:
    commands = (INSPECT, EVALUATE, VERIFY, DOCTOR, REPORT, COMPARE, RESUME, ABLATE, *[LOAD] * 16)
    files = ("run/weights.safetensors", "run/thresholds.safetensors", "run/network/config.json")
    found = [Reading(file, words, mutate.some_bytes, True) for file in files for words in commands]
    tuned = Reading(".tuned.passes/tune.pt", TUNE, mutate.some_bytes, True)
    return [*found, *[tuned] * 2]


def checkpoints() -> list[Reading]:
    """Checkpoints that `convert` is given; what an archive's checksums cover may not change."""
    changes: tuple[tuple[str, Change, bool], ...] = (
        ("w.safetensors", mutate.some_bytes, False),
        ("w.safetensors", header, False),
        ("w.pth", mutate.some_bytes, True),
        ("w.pth", mutate.inside_zip, False),
        ("training.pth", mutate.inside_zip, False),
        ("old.pth", mutate.some_bytes, False),
        ("old.pth", front, False),
    )
    return [Reading(f"weights/{name}", weighed(name), change, exact) for name, change, exact in changes]


def header(data: bytes, rng: Random) -> Damage:
    """A field of a safetensors header, which is JSON behind its length."""
    size = int.from_bytes(data[:8], "little")
    what, changed = mutate.one_field(data[8 : 8 + size], rng, sealed_again=False)
    return f"header: {what}", len(changed).to_bytes(8, "little") + changed + data[8 + size :]


def front(data: bytes, rng: Random) -> Damage:
    """The pickles at the front of a checkpoint, not the numbers behind them."""
    what, changed = mutate.some_bytes(data[:2000], rng)
    return what, changed + data[2000:]


def configurations() -> list[Reading]:
    kinds = (mutate.some_bytes, modest, modest)
    found = [
        Reading(file, AFRESH, change, False)
        for file in ("net/config.json", "net/preprocessor_config.json")
        for change in kinds
    ]
    return [
        *found,
        Reading("net/model.safetensors", AFRESH, mutate.some_bytes, False),
        *(Reading("map/map.json", MAPPED, change, False) for change in kinds[:2]),
    ]


def annotations() -> list[Reading]:
    file = "scenes/instances.json"
    objects = Reading(file, DETECT, outlines, False)
    return [*(Reading(file, DETECT, c, False) for c in (mutate.some_bytes, resealed)), objects, objects]


def exported() -> list[Reading]:
    """The folder of `export --format integers`, by the script that replays it, the library and `export --verify`.

    The last knows the checksum of the record, so that nothing passes it, sealed again or not.
    """
    readers = (("replay", "exported"), ("integers", "exported"))
    tensors = [f"exported/{name}" for name in ("network.safetensors", "golden.safetensors", "schema.json")]
    return [
        *both("exported/network.json", *readers),
        *both("exported/network.json", *readers)[2::3],
        *(Reading("exported/network.json", CHECK, change, True) for change in (mutate.some_bytes, fields, resealed)),
        *(Reading(file, CHECK, mutate.some_bytes, True) for file in tensors),
        *both("exported.verified.json", CHECK),
        *(Reading(file, words, mutate.some_bytes, words[0] != "integers" or file != tensors[2])
          for file in tensors for words in readers),
    ]  # fmt: skip


def recipes() -> list[Reading]:
    """Recipe files, by their reader alone and by `convert`."""
    yaml, plain = RECIPES
    changes = (
        (yaml, mutate.some_bytes),
        (yaml, mutate.yaml_value),
        (plain, mutate.some_bytes),
        (plain, fields),
    )
    return [
        Reading(name, words, change, False)
        for name, change in changes
        for words in (*[("recipe", name)] * 3, by(name))
    ]


def plans() -> list[Reading]:
    """The plan of `run`: of one that is done, and the journal of one that is not."""
    done, half = ("follow", "."), ("follow", "half")
    return [
        *both("whole/plan.json", done),
        *both("half/.whole.plan.json", half),
        *both("whole/plan.json", done)[:2],
    ]


def texts() -> list[Reading]:
    """A text, the tokenizer and configuration of a run that reads, and those of the network before."""
    sealed = ("run.json", "weights.safetensors", "network/tokenizer.json", "network/config.json")
    plain = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")
    return [
        *[Reading("story/story.txt", SCORE, mutate.some_bytes, False)] * 3,
        *(
            Reading(f"text/{name}", words, mutate.some_bytes, True)
            for name in sealed
            for words in (SCORE, GENERATE)
        ),
        *(
            Reading(f"writer/{name}", WRITE, change, False)
            for name in plain
            for change in (mutate.some_bytes, modest)
        ),
    ]


def requests() -> list[Reading]:
    """What the live page is sent, as it is on the wire, and a damaged run behind it."""
    asked = Reading("asked/request.http", SERVE, mutate.some_bytes, False)
    head = Reading("asked/request.http", SERVE, opening, False)
    return [asked, head, head, Reading("run/run.json", SERVE, resealed, False)]


def opening(data: bytes, rng: Random) -> Damage:
    """The lines before the picture."""
    end = data.index(b"\r\n\r\n")
    what, changed = mutate.some_bytes(data[:end], rng)
    return f"head: {what}", changed + data[end:]


def uploads() -> list[Reading]:
    """What a hub answers to `push`, and what is uploaded."""
    answers = Reading("hub/answers.json", PUSH, modest, False)
    record = Reading("run/run.json", PUSH, mutate.some_bytes, False)  # it is uploaded as it is
    return [
        answers,
        answers,
        answers,
        record,
        Reading("run/weights.safetensors", PUSH, mutate.some_bytes, True),
    ]


def outlines(data: bytes, rng: Random) -> Damage:
    """A polygon, run lengths or a box that is odd: the parts that reach C code."""
    import json

    record = json.loads(data)
    annotation = rng.choice(record["annotations"])
    size = rng.choice(
        ([64, 64], [0, 0], [64], [-1, 64], [1 << 20, 1 << 20], [64, 65], ["64", 64], [64.5, 64], None)
    )
    number = rng.choice(
        (0, -1, 1, 5, 63, 64, 65, 1e9, -1e9, 1e308, float("nan"), float("inf"), "3", None, [], 2**40)
    )
    outline: Any = rng.choice(
        (
            [], [[]], [[1]], [[1, 2]], [[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5, 6, number]],
            [[number, 2, 3, 4, 5, 6]], [[number] * 8], [[[1, 2, 3, 4, 5, 6]]], [None], None, "x", 7, {}, [{}],
            {"size": size, "counts": [10, 10, 4076]}, {"size": size, "counts": [number, 10, 4076]},
            {"size": size, "counts": [4096]}, {"size": size, "counts": []}, {"size": [64, 64], "counts": [1, 2]},
            {"size": [64, 64], "counts": number}, {"size": size, "counts": "R;1m13O0O110O1O0O100"},
            {"size": size, "counts": rng.randbytes(rng.randrange(40)).decode("latin-1")},
            {"size": [64, 64], "counts": "".join(chr(rng.randrange(48, 112)) for _ in range(rng.randrange(60)))},
            {"size": [64, 64], "counts": "o" * rng.randrange(200)}, {"size": [64, 64]}, {"counts": "00"},
            {"size": [64, 64], "counts": [rng.randrange(-5, 100) for _ in range(rng.randrange(20))]},
            {"size": [64, 64], "counts": [2**31, 2**31, 4096]}, [[float(i) for i in range(4001)]],
        )
    )  # fmt: skip
    if rng.random() < 0.15:
        annotation["bbox"] = rng.choice(([], [1, 2, 3], [number, 1, 2, 3], [5, 5, -3, number], None, "box"))
        what = f"box {annotation['bbox']!r:.80}"
    else:
        annotation["segmentation"] = outline
        annotation["iscrowd"] = rng.choice((0, 0, 1, annotation["iscrowd"], number))
        what = f"outline {outline!r:.80}, iscrowd {annotation['iscrowd']!r:.20}"
    return f"annotation {annotation['id']}: {what}", json.dumps(record).encode()


BRIEF = (LOAD, INSPECT, EVALUATE, VERIFY, *map(weighed, CHECKPOINTS))
"""Commands that need no more than a run."""
GROUPS: dict[str, Callable[[], list[Reading]]] = {
    "records": own_records,
    "tensors": tensors,
    "checkpoints": checkpoints,
    "configurations": configurations,
    "annotations": annotations,
    "exported": exported,
    "recipes": recipes,
    "plans": plans,
    "texts": texts,
    "requests": requests,
    "uploads": uploads,
}


WHOLE: dict[Words, Any] = {}
"""Command → what it gives with all files as they are."""


def learn(stage: Path, words: Words) -> tuple[Words, Any, list[str]]:
    """Run a command on whole files; return it, its result, and the modules that it imported."""
    place, needs = SEES[words]
    with tempfile.TemporaryDirectory(prefix="whole-", dir=stage.parent) as name:
        folder = Path(name)
        copy_of(stage, folder, needs)
        outcome = run(words, folder, seconds=600, imported=folder / "modules")
        if outcome.code != 0:
            raise RuntimeError(f"onespike {' '.join(words)} fails on files that are whole:\n{outcome.tail}")
        result = result_of(folder, outcome, place)
        return words, result, (folder / "modules").read_text(encoding="utf-8").split()


def choose(stage: Path, group: str, number: int) -> Reading:
    """The readings of a group that the stage allows take turns."""
    readings = [c for c in GROUPS[group]() if c.words in WHOLE and (stage / c.file).exists()]
    return readings[number % len(readings)]


def case(stage: Path, folder: Path, group: str, number: int, rng: Random) -> tuple[str, list[Fault]]:
    """One mutation: damage, read, judge."""
    chosen = choose(stage, group, number)
    what, damaged = chosen.change((stage / chosen.file).read_bytes(), rng)
    done = f"{chosen.file}: {what}"
    copy_of(stage, folder, SEES[chosen.words][1])
    (folder / chosen.file).write_bytes(damaged)
    outcome = run(chosen.words, folder)
    kind = outcome.fault()
    if kind is None and outcome.code == 0 and chosen.exact:
        found = result_of(folder, outcome, SEES[chosen.words][0])
        kind = None if found == WHOLE[chosen.words] else "corrupt"
    if kind is None and outcome.code == 2 and half_written(folder):
        kind = "half-written"
    if (folder / "canary").exists():
        kind = "executed"
    if kind is None:
        return done, []
    return done, [Fault(kind, done, chosen.words, outcome.tail)]


def half_written(folder: Path) -> list[str]:
    """Files and folders under the temporary name that a command gives to what is not finished."""
    return [
        str(path.relative_to(folder)) for path in folder.rglob("*") if re.search(r"\.partial$", path.name)
    ]
