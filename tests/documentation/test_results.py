"""The tables of README and documentation are what the records of benchmarks give, and no figure stands there by hand."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from pages import PAGES, ROOT, Block, parts

spec = importlib.util.spec_from_file_location("docs_results", ROOT / "docs" / "results.py")
results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)
records = sys.modules["records"]

MENU = re.search(r"- Results:\n((?: {6}- .*\n)+)", (ROOT / "mkdocs.yml").read_text("utf-8"))[1]
RESULTS = [ROOT / "docs" / name for name in re.findall(r": ([\w-]+\.md)", MENU)]
FIGURE = re.compile(
    r"(?<![\w.])[\d,]*\d(?:\.\d+)?\s?(?:%|±|×(?!\d)|ms\b|MB\b|GB\b|MiB\b|GiB\b|pJ\b|points?\b)|(?<![\w.])\d*\.\d+(?![\w.])"
)
"""A number with a unit, or one with decimals."""


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_results_are_not_typed_by_hand(page):
    """Directives, code and the settings that a sentence names are left out."""
    text = results.WRITTEN.sub("", page.read_text("utf-8"))
    prose = "".join(part for part in parts(text) if not isinstance(part, Block))
    prose = re.sub(r"\{\{.*?\}\}|`[^`]*`|\]\([^)]*\)|\$[^$]*\$|[λθTp] = [\d.]+", "", prose)
    assert [match[0] for match in FIGURE.finditer(prose)] == []


@pytest.mark.parametrize("name", records.names())
def test_a_record_is_of_the_form_and_written_as_its_text(name):
    record = records.read(name)
    assert records.text(record) == (records.FOLDER / f"{name}.json").read_text("utf-8")


def test_every_record_has_a_place():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert [name for name in records.names() if not re.search(rf"(?:results?|plot): {name}\b", text)] == []


def test_readme_has_the_tables_of_the_records():
    text = results.README.read_text("utf-8")
    assert results.written(text) == text, "run python docs/results.py --write"


def test_the_picture_is_drawn_from_the_records():
    import drawn

    assert drawn.digest().encode() in results.PICTURE.read_bytes(), "run python docs/results.py --write"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_differences_are_not_typed_by_hand(page):
    """What stands with its error is a result, and comes from a record."""
    text = results.WRITTEN.sub("", page.read_text("utf-8"))
    blocks = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    assert re.findall(r".*\d ± \d.*", blocks.sub("", text)) == []


def test_code_that_has_changed_since_is_told(monkeypatch):
    record = records.read(records.names()[0])
    monkeypatch.setattr(records, "git", lambda *words: "abc\ndef" if words[0] == "log" else None)
    assert "the code has changed since" in results.making(record)
    assert "2 later commits" in results.making(record)
    monkeypatch.setattr(records, "git", lambda *words: "")
    assert "changed" not in results.making(record)
    monkeypatch.setattr(records, "git", lambda *words: None)  # no repository, or not all of its commits
    assert "cannot be told" in results.making(record)


def test_a_benchmark_leaves_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks" / "speed.py"), "--only", "speed vit-base 8 *"])
    rows, columns = [{"what": "a", "ms": records.Figure(1.5, error=0.25)}], {"what": "what", "ms": "ms"}
    made = records.write("fast", rows, about="A test.", columns=columns)
    again = records.read("fast")
    assert again.command == "python benchmarks/speed.py --only 'speed vit-base 8 *'"
    assert again.code == ["benchmarks/speed.py"]
    assert (again.processor, again.date) == (made.processor, made.date)
    assert float(again.rows[0]["ms"].error) == 0.25
