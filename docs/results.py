"""Tables and figures of the documentation, from the records in `benchmarks/results`.

On a page, `{{ results: NAME }}` becomes the table of a record and a line on its making; `| columns=a,b`, `| rows=first;second*`
and `| fold=TITLE` choose from it. A row is called by its
first column (a pattern), and where several are called so as `ROW @ CELL`. `{{ result: NAME | ROW | COLUMN }}` is one figure in a sentence, `{{ plot: NAME }}` draws a front.
In README the tables stand between `<!-- results: … -->` and `<!-- end -->`: `python docs/results.py --write` writes them, and
draws `docs/images/fronts.png`.
"""

from __future__ import annotations

import datetime
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "docs")]

import drawn  # noqa: E402
import records  # noqa: E402
from records import Column, Figure, Record, RecordError  # noqa: E402

from onespike.reports import plots  # noqa: E402

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "fronts.png"
DIRECTIVE = re.compile(r"\{\{ (results?|plot): ([^}]+?) \}\}")
WRITTEN = re.compile(r"(<!-- results: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
UNKNOWN = "not recorded"


def number(value: Any, column: Column) -> str:
    """A number as its column has it, with a real minus sign."""
    said = format(value if column.format else Decimal(str(value)), column.format)
    return re.sub(r"^-(?=[0.,]+$)", "", said).replace("-", "−")  # what rounds to zero has no sign


def cell(value: Any, column: Column) -> str:
    """What stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    figure = value if isinstance(value, Figure) else Figure(value)
    bare = Column(column.title, format=column.format.lstrip("+"))
    before, after = (
        (column.unit, "") if column.unit == "×" else ("", f" {column.unit}" if column.unit else "")
    )
    if figure.value is None:
        return f"{before}{number(figure.low, column)} to {number(figure.high, column)}{after}"
    said = before + number(figure.value, column)
    if figure.before is not None:
        said = f"{number(figure.before, bare)} → {said}"
    if figure.error is not None:
        said += f" ± {number(figure.error, bare)}"
    said += after
    if figure.low is not None and figure.high is not None:
        said += f" ({number(figure.low, column)} to {number(figure.high, column)})"
    return said if figure.beside is None else f"{said} ({number(figure.beside, bare)})"


def chosen(record: Record, options: dict[str, str]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and rows that a directive asks for."""
    columns = [key.strip() for key in options.get("columns", ",".join(record.columns)).split(",")]
    if missing := [key for key in columns if key not in record.columns]:
        raise RecordError(f"{record.name} has no column {missing[0]!r}. It has: {', '.join(record.columns)}.")
    if "rows" not in options:
        return columns, record.rows
    return columns, [row for pattern in options["rows"].split(";") for row in record.where(pattern)]


def figure(record: Record, row: str, column: str) -> str:
    """One figure, for a sentence."""
    matching = record.where(row)
    if len(matching) != 1 or column not in matching[0]:
        raise RecordError(
            f"{record.name}: {len(matching)} rows are called {row!r}, or they have no {column!r}. Name one row, if need be as "
            f"ROW @ CELL, and one of {', '.join(record.columns)}."
        )
    return cell(matching[0][column], record.columns[column])


def table(record: Record, options: dict[str, str]) -> str:
    columns, rows = chosen(record, options)
    numeric = [any(not isinstance(row.get(key), str | None) for row in record.rows) for key in columns]
    lines = [
        [record.columns[key].title for key in columns],
        ["---:" if right else "---" for right in numeric],
        *([cell(row[key], record.columns[key]) if key in row else "" for key in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |".replace("  ", " ") for line in lines)


def day(date: str | None) -> str:
    if date is None:
        return f"date {UNKNOWN}"
    when = datetime.date.fromisoformat(date)
    return f"{when:%B} {when.day}, {when.year}"


def making(record: Record) -> str:
    """Command, date, version and processor, and whether the code has changed since."""
    commands = " and ".join(f"`{line}`" for line in (record.command or "").split("\n") if line)
    version = f"onespike {record.version}" if record.version else f"version {UNKNOWN}"
    said = [
        commands or f"command {UNKNOWN}",
        f"{day(record.date)}, {version}"
        + (f" ({record.commit})" if record.commit else f", commit {UNKNOWN}"),
        record.processor or f"processor {UNKNOWN}",
    ]
    since = records.later(record)
    if since:
        said.append(f"**the code has changed since**: {since} later commit{'s' if since > 1 else ''}")
    elif since is None and record.commit and record.code:
        said.append("whether the code has changed since cannot be told in this copy of the repository")
    return " · ".join(said)


def parsed(text: str) -> tuple[Record, dict[str, str]]:
    name, *rest = (part.strip() for part in text.split("|"))
    options = dict(part.partition("=")[::2] for part in rest)
    if unknown := set(options) - {"columns", "rows", "fold"}:
        raise RecordError(f"{name}: {unknown} is no option of a table. It has columns, rows and fold.")
    return records.read(name), options


def expanded(markdown: str) -> str:
    """A page with its tables and figures."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] == "result":
            name, row, column = (part.strip() for part in found[2].split("|"))
            return figure(records.read(name), row, column)
        if found[1] == "plot":
            return f"<figure>{plots.svg(drawn.front(records.read(found[2])), found[2])}</figure>"
        record, options = parsed(found[2])
        parts = (
            f"{table(record, options)}\n\n{record.about}\n{{: .about }}\n\n{making(record)}\n{{: .making }}"
        )
        if "fold" not in options:
            return parts
        return f'??? note "{options["fold"]}"\n\n' + re.sub(r"^(?=.)", "    ", parts, flags=re.MULTILINE)

    return DIRECTIVE.sub(replaced, markdown)


def written(readme: str) -> str:
    """README with the tables that its records give; what changes with every commit is left to the pages."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}\n{table(*parsed(found[2]))}\n\n{found[3]}"

    return WRITTEN.sub(replaced, readme)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return expanded(markdown)


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit("python docs/results.py --write writes the tables of README.")
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
    if drawn.digest().encode() not in PICTURE.read_bytes():
        PICTURE.write_bytes(plots.saved(drawn.overview(), metadata={drawn.DIGEST: drawn.digest()}))


if __name__ == "__main__":
    main()
