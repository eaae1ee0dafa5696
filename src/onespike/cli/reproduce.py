"""`onespike reproduce`: the paper's tables and figures, measured again."""

from functools import partial
from pathlib import Path
from typing import Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import load_network
from onespike.errors import UsageError, unknown
from onespike.runtime.atomic import try_folder

IMAGES = {"cifar10-vit": 500, "cifar10-resnet18": 200}
"""The default number of test images for the bundled networks, so that every study ends within minutes."""


@command(interrupted="finished rows are kept. Run the same command again to go on.")
def reproduce(
    name: str,
    *,
    model: str | None = None,
    weights: str | None = None,
    data: str | None = None,
    annotations: Path | None = None,
    calibrate: str | None = None,
    images: int = 64,
    trials: int = 200,
    repeat: int | None = None,
    seed: int | None = None,
    limit: int | None = None,
    batch_size: int = 50,
    device: str = "cpu",
    profile: str | None = None,
    out: Path | None = None,
) -> Next:
    """Measure a table or figure of the paper again.

    CSV, LaTeX, JSON and figures are written to the --out folder, with the paper's numbers beside ours. Every
    finished row is kept there, so that the same command resumes an interrupted study. `theorems` tests equation 5
    and Theorems 1 to 3 on random cases in exact arithmetic; the exit code is 1 if one does not hold.
    """
    from onespike import runs
    from onespike.runtime.devices import place_
    from onespike.studies.reproduce import STUDIES, Bench, run_study
    from onespike.studies.reproduce.bench import split
    from onespike.studies.reproduce.study import columns_of
    from onespike.tasks import Detection

    if name == "theorems":
        return _theorems(trials, seed or 0)
    if name == "list":
        titles = [(study.name, study.title) for study in STUDIES.values()]
        titles.append(("theorems", "The paper's claims, on random cases in exact arithmetic"))
        output.rows(("study", "what it shows"), titles, left=(0, 1))
        return "reproduce", next(iter(STUDIES))
    if name not in STUDIES and name != "all":
        raise unknown("study", name, (*STUDIES, "all", "theorems"))
    if model is not None and data is None and not model.startswith("bundled:"):
        raise UsageError("a network of your own is measured on images of your own. Give --data DIR.")
    if images < 2:
        raise UsageError(f"calibration needs at least 2 images, not {images}. Try 64.")
    for study in STUDIES.values() if name == "all" else (STUDIES[name],):
        spec = model or f"bundled:{study.network}"
        network = spec.partition(":")[2]
        place = out or Path("reproduction") / network.replace("/", "-")
        try_folder(place)
        loaded = load_network(spec, weights)
        if study.task not in (None, loaded.task.name):
            reason = f"{study.name} is about {study.task}, and {spec} is not. Give another --model."
            if name != "all":
                raise UsageError(reason)
            output.line(reason)
            continue
        if calibrate is not None and isinstance(loaded.task, Detection):
            raise UsageError("a detector searches λ on annotated images of data=. Leave calibrate= out.")
        test = runs.choose_labeled(loaded, data or loaded.task.bundled[1], annotations)
        source = calibrate or data or loaded.task.bundled[0]  # of calibration and searches
        choose = partial(runs.choose_labeled, loaded, source, annotations if source == data else None)
        apart = None if source == data and calibrate is None else choose(2 * images)
        first, second, measured = split(test, apart, images, limit or (None if data else IMAGES.get(network)))
        runs.check_forward(place_(loaded.model, device), runs.Inputs(first, loaded))
        draws: list[Any] = []
        if repeat is not None or seed is not None:
            number = 1 if repeat is None else repeat
            first, *draws = runs.draws(choose(), len(first), number, seed or 0, (second, measured))
        bench = Bench(loaded, first, second, measured, place, batch_size, draws)
        rows, files = run_study(study, bench)
        (columns, cells), every = study.table(rows), len(columns_of(rows))
        metrics = dict.fromkeys(str(row["metric"]) for row in rows if row.get("metric"))
        output.line(study.title + "".join(f"; score: {metric}" for metric in metrics))
        if len(rows) <= 60:
            output.rows(columns, cells)
        more = f" with {every} columns" if len(columns) < every else ""
        written = f"written to {', '.join(str(file) for file in files)}{more}"
        output.line(f"{study.note} {bench.note}".strip(), written, "")
    later = [*STUDIES, "list"]
    return "reproduce", "list" if name == "all" else later[later.index(name) + 1]


def _theorems(trials: int, seed: int) -> Next:
    from onespike.studies import theory

    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. Try 200.")
    claims = theory.check_all(trials, seed)
    cells = [(row.name, f"{row.held}/{row.tried}", f"{row.margin:.3g}", row.statement) for row in claims]
    output.rows(("claim", "held", "worst margin", "statement"), cells, left=(0, 3))
    failed = [row for row in claims if row.counterexample]
    for row in failed:
        output.line(f"{row.name} does not hold: {row.counterexample}")
    if failed:
        raise typer.Exit(1)
    return ("demo",)
