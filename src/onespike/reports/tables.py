"""Tables as files for other programs: CSV for spreadsheets, LaTeX for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from onespike.runtime.atomic import write_atomically

Cells = Sequence[Sequence[str]]
NUMBERS = str.maketrans({"−": "-", "–": ""})
TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "±": r"$\pm$", "×": r"$\times$",
        "→": r"$\to$", "λ": r"$\lambda$", "θ": r"$\theta$", "µ": r"$\mu$",
    }
)  # fmt: skip


def as_csv(headers: Sequence[str], rows: Cells) -> str:
    """Return a table as CSV, with numbers that programs can read.

    >>> print(as_csv(["run", "difference"], [["a", "−0.5"], ["b", "–"]]), end="")
    run,difference
    a,-0.5
    b,
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(
        [cell.translate(NUMBERS) for cell in row] for row in (headers, *rows)
    )
    return buffer.getvalue()


def as_latex(headers: Sequence[str], rows: Cells) -> str:
    r"""Return a table as a LaTeX `tabular`, its first column to the left.

    >>> print(as_latex(["run", "top-1 %"], [["a_b", "80.3 ± 0.6"]]), end="")
    \begin{tabular}{lr}
    \hline
    run & top-1 \% \\
    \hline
    a\_b & 80.3 $\pm$ 0.6 \\
    \hline
    \end{tabular}
    """
    lines = [" & ".join(cell.translate(TEX) for cell in row) + r" \\" for row in (headers, *rows)]
    columns = "l" + "r" * (len(headers) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}", ""]
    )  # fmt: skip


FORMS: dict[str, Callable[[Sequence[str], Cells], str]] = {".csv": as_csv, ".tex": as_latex}
"""Ending of a file → how a table is written there."""


def write_tables(file: Path, tables: Sequence[tuple[Sequence[str], Cells]]) -> None:
    """Write tables in the form of a file's ending: the first into it, the others beside it as `NAME-2`, `NAME-3`, …."""
    for number, (headers, rows) in enumerate(tables, 1):
        place = file if number == 1 else file.with_stem(f"{file.stem}-{number}")
        write_atomically(place, FORMS[file.suffix](headers, rows))
