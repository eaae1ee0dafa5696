"""Pages and Markdown: complete, small, self-contained, and harmless whatever the names are."""

from __future__ import annotations

import json
import re

import pytest
from report_record import HOSTILE, make_record

from onespike.gather import _block
from onespike.report import page, text


@pytest.fixture(scope="module")
def record():
    return make_record()


def test_a_page_is_one_small_file(record):
    html = page.render(record)
    assert len(html.encode()) < 5e6
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html)
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    for part in ("Accuracy against energy", "Energy columns", "Inputs and predictions", "How it was made"):
        assert part in html
    for row in record["sites"]:
        assert row["site"] in html


def test_hostile_text_is_shown_and_not_run(record):
    both = [record, {**record, "run": "<script>b</script>"}]
    for html in (page.render(record), page.compare(both)):
        assert "<script>alert" not in html and "<script>b" not in html
        assert html.count("<script") == 2  # the data and our own
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "{{7*7}}" in html
        assert "script-src 'sha256-" in html
    assert "<script" not in text.markdown(record).replace(record["command"], "")
    assert HOSTILE in json.dumps(record, ensure_ascii=False).replace('\\"', '"')


def test_the_record_is_json_and_makes_the_same_page(record):
    again = json.loads(json.dumps(record))
    assert page.render(again) == page.render(record)
    assert text.markdown(again) == text.markdown(record)


def test_a_run_that_was_not_measured(record):
    plain = {**record, "evaluation": None, "data": None, "front": None, "examples": []}
    plain["sites"] = [
        {k: row[k] for k in ("site", "kind", "block", "role", "spiking", "neuron")} for row in record["sites"]
    ]
    html = page.render(plain)
    assert "Nothing is measured here" in html
    assert "## Energy" not in text.markdown(plain)


def test_energy_shares_sum_to_one_and_examples_have_a_trail(record):
    assert sum(row.get("energy_share", 0) for row in record["sites"]) == pytest.approx(1.0)
    assert 1 <= len(record["examples"]) <= 6
    for example in record["examples"]:
        assert len(example["trail"]) == len(record["sites"])
        assert example["trail"][0][1] == 99.0  # nothing has spiked before the first site
    assert [p["scale"] for p in record["front"]["points"]] == [1.0, 0.5, 0.25, 0.12]


def test_comparison_shows_what_differs(record):
    other = {**record, "run": "b", "recipe": {**record["recipe"], "scale": 0.5}}
    html, markdown = (
        page.compare([record, other]),
        text.compare_markdown([record, other], {"scale": ["0.25", "0.5"]}),
    )
    assert "Where the recipes differ" in html
    assert "| 0.5 |" in markdown


def test_pictures_of_a_task_of_its_own_are_taken(monkeypatch):
    from onespike import gather

    shown = [{"name": "x", "label": None, "image": "data:,", "agree": True, "ann": [["box", 0.5]],
              "snn": [["box", 0.4]], "trail": []}]  # fmt: skip
    monkeypatch.setattr(gather, "classified", lambda *_: shown)
    assert "box 50.0 %" in page.render(make_record())


def test_blocks_are_drawn_in_the_order_of_execution(record):
    rows = page.blocks(record["sites"])
    assert [row["name"] for row in rows] == ["stem", "blocks.0", "blocks.1", "head"]
    assert [c["index"] for row in rows for c in row["cells"]] == list(range(len(record["sites"])))
    assert _block(":matmul0_lhs") == "network"
