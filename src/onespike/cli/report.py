"""`onespike report`, `serve` and `push`: a run as a page, or several; as a live page; and with a card on the Hub."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, words
from onespike.errors import UsageError, unknown
from onespike.runtime.atomic import try_folder
from onespike.runtime.validated import read_sealed, understood

if TYPE_CHECKING:
    from onespike.runs import NetworkPair
    from onespike.tasks import Items

FOLDER, RECORD = "report", "report.json"
AGAIN = "Make the reports again: onespike report RUN --data DIR"


@command(out=Word("DIR", "By default RUN/report, or onespike-compare for several.", attempt=try_folder))
def report(
    runs: list[Path],
    *,
    data: str | None = None,
    annotations: Path | None = None,
    out: Path | None = None,
    energy: str | None = None,
    limit: int | None = None,
    held_out: bool = False,
    batch_size: int = 16,
    device: str = "cpu",
    profile: str | None = None,
    hardware: bool = False,
) -> Next:
    """Write a page about a run, or about several runs.

    One HTML file, Markdown and JSON: it shows scores, energy, every site with its distribution, the front of scores against energy, and inputs with both
    networks' predictions. The page needs no network and no other file. Several runs are compared in one table, drawn
    against --energy: on the images of --data, or else by the figures of their own reports.
    """
    from onespike.energy.columns import COLUMNS
    from onespike.reports.pages import common_column, write_report
    from onespike.reports.record import gather
    from onespike.reports.tables import comparison, figure
    from onespike.runs import evaluate_pair, load
    from onespike.runs.searching import measurable
    from onespike.tasks import compared

    run, several = runs[0], len(runs) > 1
    if several and energy is not None and energy not in COLUMNS:
        raise unknown("energy column", energy, COLUMNS)
    if energy is not None and not several:
        raise UsageError("--energy draws several runs, and there is one. Leave it out.")
    if hardware and several:
        raise UsageError("--hardware is for one run, and there are several. Leave it out.")
    wanted = {"--annotations": annotations, "--held-out": held_out, "--profile": profile}
    for option, value in wanted.items() if data is None else ():
        if value:
            raise UsageError(f"{option} is for what is measured, and nothing is. Give --data DIR, too.")

    def items(run: Path, pair: NetworkPair) -> Items:
        return measurable(run, pair, str(data), annotations, limit, held_out=held_out)

    if not several:
        pair = load(run, device=device)
        folder = out or run / FOLDER
        try_folder(folder)
        report_pair(run, pair, None if data is None else items(run, pair), folder, batch_size, hardware)
        if data is None:
            return "inspect", run
        return "doctor", run, *words(data=data, annotations=annotations, limit=limit)
    if data is None:
        records = [{**reported(each), "run": str(each)} for each in runs]
    else:
        pairs = {each: load(each, device=device) for each in runs}
        task = pairs[run].loaded.task.name
        for each, pair in pairs.items():  # before data of one task is read as data of another
            if (other := pair.loaded.task.name) != task:
                tasks = f"the task of {run} is {task}, that of {each} is {other}"
                raise UsageError(f"report: {tasks}. Compare runs of one task at a time.")
        records = []
        for each, pair in ((each, pairs[each]) for each in runs):
            result = evaluate_pair(pair, items(each, pair), batch_size=batch_size)
            records.append({**gather(each, pair, None), "evaluation": result.to_dict()})
    names, folder = list(map(str, runs)), out or Path("onespike-compare")
    with understood(", ".join(names), AGAIN):
        output.line(write_report(folder, records, energy))
        evaluations, column = [record["evaluation"] for record in records], energy or common_column(records)
        more = {f"energy ({column})": [figure(one["energy"][column], 3) for one in evaluations]}
        output.rows(*comparison("run", names, compared(evaluations), more), left=(0,))
    output.tables(folder / "compare.csv", folder / "compare.tex")
    return "inspect", run


def report_pair(
    run: Path, pair: NetworkPair, items: Items | None, folder: Path, batch_size: int, hardware: bool = False
) -> None:
    """Measure a run, write its pages and print its figures."""
    from onespike.cli import show
    from onespike.reports.pages import write_report
    from onespike.reports.record import gather

    record = gather(run, pair, items, batch_size=batch_size, hardware=hardware)
    output.line(write_report(folder, [record]))
    if record["evaluation"] is not None:
        output.line()
        show.measured(record["evaluation"], pair.recipe.steps, pair.loaded.published_top1)
        output.tables(folder / "report.csv", folder / "report.tex")


def reported(run: Path) -> dict[str, Any]:
    """Return the measured report in a run."""
    from onespike.reports.record import VERSION, ReportRecord
    from onespike.runs import storage

    storage.load(run)  # a damaged run is named before its report is trusted
    record = read_sealed(ReportRecord, run / FOLDER / RECORD, AGAIN)
    if record is None or record["evaluation"] is None or record["version"] != VERSION:
        raise UsageError(f"{run}: no measured report. Give --data DIR, or: onespike report {run} --data DIR")
    return record


@command(interrupted="the page is closed.")
def serve(
    run: Path, *, address: str = "127.0.0.1:8765", profile: str | None = None, device: str = "cpu"
) -> Next:
    """Open a page on which a run answers.

    Drop an input on it to see both networks' answers, the spikes of every site, the energy, and
    the effect of another λ. Only this machine can reach it. Ctrl-C ends it.
    """
    from onespike.reports.live import HERE, LiveServer, Session
    from onespike.runs import load

    host, _, number = address.rpartition(":")
    host, port = host or "127.0.0.1", int(number) if number.isdecimal() else -1
    if not 0 <= port < 2**16:
        raise UsageError(f"--address ends in a port from 0 to 65535, not {number}.")
    pair = load(run, device=device)
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        LiveServer(Session(run, pair, folder=folder), host, port) as server,
    ):
        if host not in HERE:
            output.note("warning: other machines can reach this page, and nothing asks them who they are")
        output.line(f"serving {run} at {server.url} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            output.note("the page is closed")
    if server.session.lock.locked():  # torch computes in a thread, and the interpreter cannot end in order
        atexit.register(os._exit, 0)
    return "report", run


@command(interrupted="the card may have been written. Run the same command again.")
def push(run: Path, repository: str | None = None, *, license: str = "", public: bool = False) -> Next:
    """Write a model card into a run and upload it to the Hub.

    The card holds the figures of the run's report with their 95 % intervals, the energy table, the recipe and the citation.
    `onespike.from_pretrained("OWNER/NAME")` loads the run again.
    """
    from onespike.reports.card import CARD, push_to_hub, write_card

    if not license:
        raise UsageError("a card names the license of the original network. Give it with --license NAME.")
    measured = None
    if (run / FOLDER / RECORD).exists():
        measured = reported(run)["evaluation"]
    else:
        output.note("figures: none. Measure first: onespike report RUN --data DIR")
    if repository is None:
        write_card(run, license=license, evaluation=measured, repository=None)
        output.line(f"card           {run / CARD}")
    else:
        address = push_to_hub(run, repository, license=license, evaluation=measured, private=not public)
        output.line(f"uploaded to    {address}")
    return "inspect", run
