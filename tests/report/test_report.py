"""Pages and Markdown: complete, small, self-contained, and harmless whatever the names are."""

from __future__ import annotations

import json
import re

import pytest
from report_record import HOSTILE, make_record

from onespike.energy.columns import FOR_WHOM
from onespike.reports import html as page
from onespike.reports import markdown as text
from onespike.reports import plots
from onespike.reports.record import block_of
from onespike.runtime.validated import sealed
from onespike.tasks import Classification


@pytest.fixture(scope="module")
def record():
    return make_record()


def test_a_page_is_one_small_file(record):
    html = page.render(record)
    assert len(html.encode()) < 5e6
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html)
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    for part in (
        "Agreement with the original against energy",
        "Energy columns",
        "Inputs and predictions",
        "How it was made",
    ):
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


@pytest.mark.parametrize(("maximize", "kept"), [(True, [0.1, 0.4]), (False, [0.1, 0.2, 0.3])])
def test_the_front_holds_every_point_that_no_other_beats(maximize, kept):
    points = [
        {"scale": 1 / (1 + e), "energy": e, "value": v} for e, v in [(0.1, 5), (0.2, 3), (0.3, 2), (0.4, 9)]
    ]
    drawn = plots.front(points, 1.0, "KL to the original, nats", "counts", maximize)
    line = next(line for line in drawn.axes[0].lines if line.get_label() == "front")
    assert list(line.get_xdata()) == kept


@pytest.mark.parametrize(("most", "axis"), [(30.0, "linear"), (9000.0, "log")])
def test_a_perplexity_that_runs_away_does_not_hide_the_others(most, axis):
    points = [{"scale": s, "energy": 1 / s, "value": v} for s, v in [(1, most), (0.5, 25.0), (0.2, 20.0)]]
    drawn = plots.front(points, 1.0, "perplexity per token", "counts", False)
    assert drawn.axes[0].get_yscale() == axis


def test_the_page_of_a_task_without_pictures_and_units(record):
    front = {**record["front"], "metric": "perplexity per token"}
    examples = [{**example, "pictures": {}} for example in record["examples"]]
    html = page.render({**record, "front": front, "examples": examples})
    assert "Perplexity per token against energy" in html
    assert '<ul class="examples wide">' in html  # no place is kept for a picture


def test_a_search_by_kl_is_drawn_beside_the_run_s_own_images(record, tmp_path):
    """Its metric is minimized, and its images are not those of the cards."""
    trials = [
        {"scale": s, "value": v, "energy": e} for s, v, e in [(1, 5.0, 0.1), (0.5, 3.0, 0.2), (0.2, 1.0, 0.3)]
    ]
    found = {
        "trials": trials,
        "best": trials[-1],
        "objective": "kl",
        "images": 7,
        "energy": "binary",
        "source": "else",
        "used": [],
    }
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search.json").write_text(sealed(found))
    made = make_record(tmp_path)
    assert made["search"]["maximize"] is False and len(made["search"]["points"]) == 3
    assert made["front"] == record["front"]
    assert "7 images of else" in page.render(made)


def test_plot_and_card_show_the_same_images_and_metric(record):
    front, evaluation = record["front"], record["evaluation"]
    assert front["images"] == evaluation["images"] == 12
    assert front["metric"] == "agreement with the original, %"
    own = next(p for p in front["points"] if p["scale"] == front["chosen"])
    assert own["value"] == evaluation["agreement"]
    assert own["energy"] == evaluation["energy"]["counts"]
    assert "Accuracy against energy" not in page.render(record)
    assert "## Accuracy" not in text.markdown(record)


def test_the_headline_is_the_energy_column_that_the_run_s_budget_means():
    made = make_record(passes=("nearest",), budget=0.3, energy="binary")
    ratios = made["evaluation"]["energy"]
    assert ratios["binary"] == pytest.approx(0.3, rel=0.2) and ratios["counts"] != ratios["binary"]
    shown = page.render(made)
    assert f"energy <b>{ratios['binary']:.3f}</b>" in shown
    assert f"counts {ratios['counts']:.3f}" in shown
    assert made["front"]["energy"] == "binary"
    assert sum(row.get("energy_share", 0) for row in made["sites"]) == pytest.approx(1.0)
    assert page.compared([made, made])[0]["energy"] == ratios["binary"]
    assert "| **binary** |" in text.markdown(made)


def test_what_a_ratio_leaves_out_stands_beside_it(record):
    evaluation = record["evaluation"]
    for shown in (page.render(record), text.markdown(record)):
        assert "prices of horowitz-45nm" in shown and "thresholds compared" in shown
        assert f"{100 * evaluation['analog_share']:.1f} % of the MACs stay analog" in shown
        assert f"{100 * evaluation['dead_share']:.1f} % cannot reach the output" in shown
    for shown in (page.compare([record, record]), text.compare_markdown([record, record], {})):
        assert "prices of horowitz-45nm" in shown and "analog MACs %" in shown
        assert f"{100 * evaluation['analog_share']:.1f}" in shown
    assert evaluation["dead_share"] == 0.0  # it takes the mean of all tokens


def test_a_report_says_for_whom_a_spiking_network_pays(record):
    assert FOR_WHOM.count(". ") == 2  # three sentences
    assert FOR_WHOM in page.render(record) and FOR_WHOM in text.markdown(record)


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


def test_examples_are_those_of_the_task():
    class Other(Classification):
        def example(self, item, ann, snn, items, network):
            return {
                "label": None,
                "pictures": {"input": "data:,"},
                "agree": True,
                "text": ["<b>box</b> 50.0 %"],
            }

    assert "&lt;b&gt;box&lt;/b&gt; 50.0 %" in page.render(make_record(task=Other()))


def test_blocks_are_drawn_in_the_order_of_execution(record):
    rows = page.blocks(record["sites"])
    assert [row["name"] for row in rows] == ["stem", "blocks.0", "blocks.1", "head"]
    assert [c["index"] for row in rows for c in row["cells"]] == list(range(len(record["sites"])))
    assert block_of(":matmul0_lhs") == "network"


def test_when_where_and_how_stand_on_the_page(record):
    shown = page.render(record)
    assert {"date", "processor", "threads", "system", "python"} <= set(record["made"])
    assert record["made"]["date"].endswith("UTC")
    for value in (*record["made"].values(), "chen2025onetimestep", "version: 1", "preset: sformer"):
        assert value in shown.replace("&amp;", "&") and value in text.markdown(record)
    assert "blocks.<wbr>" in shown


def test_a_ratio_above_one_is_warned_of(record):
    def priced(**energy):
        return {**record, "evaluation": {**record["evaluation"], "energy": {**low, **energy}}}

    low = dict.fromkeys(record["evaluation"]["energy"], 0.5)
    assert 'id="dearer"' not in page.render(priced())
    dear = priced(counts=1.2, strict=2.0)
    words = "in the columns counts (1.200) and strict (2.000) this network spends more than the original"
    assert words in page.render(dear) and words in text.markdown(dear)


def test_figures_as_files(record):
    plot = page.figures(record)["ledger"]
    files = plots.files(plot, "ledger")
    assert files == plots.files(plot, "ledger")
    assert files["ledger.pdf"].startswith(b"%PDF") and b"<svg" in files["ledger.svg"]


def test_points_have_intervals(record):
    for point in record["front"]["points"]:
        assert point["low"] <= point["value"] <= point["high"]
    assert "95 %" in page.render(record)


def test_runs_are_compared_in_any_column(record):
    other = {**record, "energy": "binary"}
    assert page.compared([record, other], "nonzero")[0]["energy"] == record["evaluation"]["energy"]["nonzero"]
    assert "(nonzero)" in page.compare([record, other], "nonzero")


def test_a_comparison_says_when_where_and_whose_method(record):
    cheap = dict.fromkeys(record["evaluation"]["energy"], 0.5)
    one, two = (
        {**record, "evaluation": {**record["evaluation"], "energy": {**cheap, "counts": counts}}}
        for counts in (0.9, 1.5)
    )
    shown = page.compare([one, two])
    for words in (*record["made"].values(), record["versions"]["torch"], "@article{chen2025"):
        assert words in shown, words
    assert "Run 2: in the column counts (1.500) this network spends more than the original." in shown
    assert "Run 1: in the column" not in shown
    assert '<span class="word">--out</span>' in shown  # a command breaks between words


def test_runs_at_one_place_share_a_label(record):
    texts = [text.get_text() for text in plots.runs(page.compared([record, record]), "top-1").axes[0].texts]
    assert "1, 2" in texts


def test_originals_are_told_apart(record):
    rows = [
        {**row, "original": value}
        for row, value in zip(page.compared([record] * 3), (80.0, 90.0, 80.0), strict=True)
    ]
    texts = [text.get_text() for text in plots.runs(rows, "top-1").axes[0].texts]
    assert {"original of 1, 3", "original of 2"} <= set(texts) and "original" not in texts
