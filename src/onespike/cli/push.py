"""`onespike push`: a run as a repository with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import RunFolder
from onespike.cli.reported import FOLDER, RECORD, evaluated, reported


@command(
    "onespike push run OWNER/NAME --license apache-2.0",
    "onespike push run --license mit --card-only",
    interrupted="the card may have been written. Run the same command again.",
)
def push(
    run: RunFolder,
    repository: Annotated[
        str | None, typer.Argument(metavar="OWNER/NAME", help="A repository on the Hugging Face Hub.")
    ] = None,
    license: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="License of the original network: apache-2.0, mit, … Converted weights keep it.",
        ),
    ] = "",
    evaluation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output of `onespike evaluate --json`, for the figures of the card; else those of the run's report.",
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    card_only: Annotated[bool, typer.Option("--card-only", help="Write the card, upload nothing.")] = False,
) -> Next:
    """Write a model card into a run and upload it to the Hub.

    The card holds the figures with their 95 % intervals, the energy table, the recipe and the citation.
    `onespike.from_pretrained("OWNER/NAME")` loads the run again.
    """
    from onespike.errors import UsageError
    from onespike.reports.card import CARD, push_to_hub, write_card

    if not license:
        raise UsageError("a card names the license of the original network. Give it with --license NAME.")
    if repository is None and not card_only:
        raise UsageError("give a repository OWNER/NAME to upload to, or --card-only to upload nothing.")
    measured: Any = None
    if evaluation is not None:
        measured = evaluated(evaluation)
    elif (run / FOLDER / RECORD).exists():
        measured = reported(run)["evaluation"]
    else:
        output.note("figures: none. Measure first: onespike report RUN --data DIR, or give --evaluation FILE")
    if card_only or repository is None:
        write_card(run, license=license, evaluation=measured, repository=repository)
        output.line(f"card           {run / CARD}")
    else:
        address = push_to_hub(run, repository, license=license, evaluation=measured, private=not public)
        output.line(f"uploaded to    {address}")
    return "inspect", run
