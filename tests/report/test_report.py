"""Pages and Markdown: complete, small, self-contained, and harmless whatever the names are."""

from __future__ import annotations

import json
import re

import pytest
from report_record import HOSTILE, make_record

from onespike.reports import pages, plots
from onespike.reports.pages import html, markdown
from onespike.reports.record import block_of
from onespike.runtime.validated import sealed
from onespike.tasks import Headline


@pytest.fixture(scope="module")
def page(record):
    return html([record])


def priced(record, **energy):
    cheap = dict.fromkeys(record["evaluation"]["energy"], 0.5)
    return {**record, "evaluation": {**record["evaluation"], "energy": {**cheap, **energy}}}


def test_a_page_is_one_small_file(record, page):
    assert len(page.encode()) < 5e6
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert all(row["site"] in page for row in record["sites"])
    assert html([json.loads(json.dumps(record))]) == page  # as it was stored


def test_hostile_text_is_shown_and_not_run(record, page):
    for document in (page, html([record, {**record, "run": "<script>b</script>"}])):
        assert "<script>alert" not in document and "<script>b" not in document
        assert document.count("<script") == 2  # the data and our own
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in document
        assert "{{7*7}}" in document
        assert "script-src 'sha256-" in document
    assert "<script" not in markdown([record]).replace(record["command"], "")
    assert HOSTILE in json.dumps(record, ensure_ascii=False).replace('\\"', '"')


@pytest.mark.parametrize(("most", "axis"), [(30.0, "linear"), (9000.0, "log")])
def test_a_perplexity_that_runs_away_does_not_hide_the_others(most, axis):
    points = [{"scale": s, "energy": 1 / s, "value": v} for s, v in [(1, most), (0.5, 25.0), (0.2, 20.0)]]
    drawn = plots.front(points, 1.0, "perplexity per token", "counts", False)
    assert drawn.axes[0].get_yscale() == axis


def test_examples_are_those_of_the_task(record):
    text = {"pictures": {}, "text": ["<b>box</b> 50.0 %"]}
    examples = [{**example, **text} for example in record["examples"]]
    document = html([{**record, "examples": examples}])
    assert "&lt;b&gt;box&lt;/b&gt; 50.0 %" in document
    assert '<ul class="examples wide">' in document  # no place is kept for a picture


def test_a_search_by_kl_is_drawn_beside_the_run_s_own_images(record, tmp_path):
    """Its metric is minimized, and its images are not those of the cards."""
    trials = [
        {"scale": s, "value": v, "energy": e} for s, v, e in [(1, 5.0, 0.1), (0.5, 3.0, 0.2), (0.2, 1.0, 0.3)]
    ]
    facts = {"objective": "kl", "images": 7, "energy": "binary", "source": "else", "used": []}
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search.json").write_text(sealed({"trials": trials, "best": trials[-1], **facts}))
    made = make_record(tmp_path)
    assert made["search"]["maximize"] is False and len(made["search"]["points"]) == 3
    assert made["front"] == record["front"]
    assert "7 images of else" in html([made])


def test_plot_and_card_show_the_same_images_and_metric(record):
    front, evaluation = record["front"], record["evaluation"]
    assert front["images"] == evaluation["images"] == 12
    assert front["metric"] == "agreement with the original, %"
    chosen = next(p for p in front["points"] if p["scale"] == front["chosen"])
    assert (chosen["value"], chosen["energy"]) == (evaluation["agreement"], evaluation["energy"]["counts"])
    assert [p["scale"] for p in front["points"]] == [1.0, 0.5, 0.25, 0.12]
    assert all(p["low"] <= p["value"] <= p["high"] for p in front["points"])


def test_the_headline_is_the_energy_column_that_the_run_s_budget_means():
    made = make_record(passes=("nearest",), budget=0.3, energy="binary")
    ratios = made["evaluation"]["energy"]
    assert ratios["binary"] == pytest.approx(0.3, rel=0.2) and ratios["counts"] != ratios["binary"]
    document = html([made])
    assert f"energy <b>{ratios['binary']:.3f}</b>" in document
    assert f"counts {ratios['counts']:.3f}" in document
    assert made["front"]["energy"] == "binary"
    assert sum(row.get("energy_share", 0) for row in made["sites"]) == pytest.approx(1.0)
    assert pages.common_column([made, made]) == "binary"
    assert "| **binary** |" in markdown([made])


def test_what_a_ratio_leaves_out_and_for_whom_it_pays_stand_beside_it(record, page):
    evaluation = record["evaluation"]
    analog = f"{100 * evaluation['analog_share']:.1f}"
    dead = f"{100 * evaluation['dead_share']:.1f} % cannot reach the output"
    for_whom = (pages.TEMPLATES / "for_whom.txt").read_text(encoding="utf-8").strip()
    for document in (page, markdown([record])):
        for words in ("prices of horowitz-45nm", f"{analog} % of the MACs stay analog", dead, for_whom):
            assert words in document
    for document in (html([record, record]), markdown([record, record])):
        assert all(w in document for w in ("prices of horowitz-45nm", "MACs that do not spike, %", analog))


def test_a_run_that_was_not_measured(record):
    listed = ("site", "kind", "block", "role", "spiking", "neuron")
    plain = {**record, "evaluation": None, "data": None, "front": None, "examples": []}
    plain["sites"] = [{key: row[key] for key in listed} for row in record["sites"]]
    assert "Nothing is measured here" in html([plain])
    assert "## Energy" not in markdown([plain])


def test_blocks_and_trails_are_in_the_order_of_execution(record):
    assert all(len(example["trail"]) == len(record["sites"]) for example in record["examples"])
    rows = pages.blocks(record["sites"])
    assert list(rows) == ["stem", "blocks.0", "blocks.1", "head"]
    assert [cell["index"] for cells in rows.values() for cell in cells] == list(range(len(record["sites"])))
    assert block_of(":matmul0_lhs") == "network"


def test_when_where_and_how_stand_on_the_page(record, page):
    assert {"date", "processor", "threads", "system", "python"} <= set(record["made"])
    for value in (*record["made"].values(), "chen2025onetimestep", "version: 1", "preset: sformer"):
        assert value in page.replace("&amp;", "&") and value in markdown([record])


def test_the_sheet_for_hardware_is_there_where_it_is_asked_for(record):
    made = make_record(hardware=True, io="int8")
    sheet = json.loads(json.dumps(made))["hardware"]
    assert record["hardware"] is None and "What hardware needs" not in html([record]) + markdown([record])
    stored = f"{sheet['totals']['weight_bytes']}"
    assert stored == str(sum(row["weight_bytes"] for row in sheet["sites"])) != "0"
    for document, cell in ((html([made]), f">{stored}<"), (markdown([made]), f"| {stored} |")):
        assert "What hardware needs" in document and cell in document
        assert all(operation["name"] in document for operation in sheet["operations"])


def test_a_ratio_above_one_is_warned_of(record):
    assert 'id="dearer"' not in html([priced(record)])
    dear = priced(record, counts=1.2, strict=2.0)
    words = "in the columns counts (1.200) and strict (2.000) this network spends more than the original"
    assert words in html([dear]) and words in markdown([dear])


def test_figures_as_files(record):
    plot = pages.figures_of([record])["ledger"]
    files = plots.files(plot, "ledger")
    assert files == plots.files(plot, "ledger")
    assert files["ledger.pdf"].startswith(b"%PDF") and b"<svg" in files["ledger.svg"]


def test_runs_are_compared_in_any_column(record, tmp_path):
    other = {**priced(record, counts=1.5), "run": "b", "recipe": {**record["recipe"], "scale": 0.5}}
    pages.write_report(tmp_path, [priced(record), other], "nonzero")
    document, words = ((tmp_path / f"compare.{form}").read_text() for form in ("html", "md"))
    for part in ("(nonzero)", "Where the recipes differ", *record["made"].values(), "@article{chen2025"):
        assert part in document
    assert "| 0.5 |" in words
    assert "Run 2: in the column counts (1.500) this network spends more than the original." in document
    assert "Run 1: in the column" not in document
    stored = json.loads((tmp_path / "compare.json").read_text())
    assert [run["run"] for run in stored["runs"]] == [record["run"], "b"]


def test_runs_at_one_place_share_a_label_and_originals_are_told_apart():
    def labels(*originals):
        headlines = [Headline("top-1", original, 79.0) for original in originals]
        drawn = plots.runs(headlines, [0.3] * len(headlines))
        return {text.get_text() for text in drawn.axes[0].texts}

    assert labels(None, None) == {"1, 2"}
    assert labels(80.0, 80.0) == {"1, 2", "original"}
    assert labels(80.0, 90.0, 80.0) == {"1, 2, 3", "original of 1, 3", "original of 2"}
