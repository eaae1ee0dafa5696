"""`onespike push`: a run as a repository with a model card."""

from __future__ import annotations

from pathlib import Path

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.report import FOLDER, RECORD, reported


@command(
    "onespike push run OWNER/NAME --license apache-2.0",
    "onespike push run --license mit",
    interrupted="the card may have been written. Run the same command again.",
)
def push(
    run: Path,
    repository: str | None = None,
    *,
    license: str = "",
    public: bool = False,
) -> Next:
    """Write a model card into a run and upload it to the Hub.

    The card holds the figures of the run's report with their 95 % intervals, the energy table, the recipe and the citation.
    `onespike.from_pretrained("OWNER/NAME")` loads the run again.
    """
    from onespike.errors import UsageError
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
