"""The page in a real browser, opened from disk: no request, no error; sorting, filtering, choosing by keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_record import HOSTILE

from onespike import runs
from onespike.adapters import load_model
from onespike.recipe import preset
from onespike.reports.pages import html
from onespike.reports.record import gather


@pytest.fixture
def opened(browser, record, tmp_path):
    return open_page(browser, record, tmp_path)


def open_page(browser, record, folder):
    file = folder / "report.html"
    file.write_text(html([record]), encoding="utf-8")
    browser.get_log("performance")
    browser.get(file.as_uri())
    return browser


def rows(browser, column):
    script = "return [...document.querySelectorAll('#sites tbody tr')].filter(r => !r.hidden).map(r => r.cells[%d].dataset.value)"
    return browser.execute_script(script % column)


def test_no_request_and_no_error_on_any_screen(opened, screen):
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [opened.current_url]
    assert opened.get_log("browser") == []
    assert opened.find_element("tag name", "h1").text == f"{HOSTILE} as a spiking network"  # shown, not run
    assert screen(390) <= 390 and screen(1280) <= 1280


def test_sorting_and_filtering(opened, record):
    header = opened.find_elements("css selector", "#sites th")[1]
    button = header.find_element("tag name", "button")
    button.send_keys("\n")
    values = [float(v) for v in rows(opened, 1) if v]
    assert values == sorted(values, reverse=True) and len(set(values)) > 1
    assert header.get_attribute("aria-sort") == "descending"
    button.click()
    values = rows(opened, 1)
    assert [float(v) for v in values if v] == sorted(float(v) for v in values if v)
    assert values[-1] == ""  # what was not measured stays at the end
    opened.find_element("id", "filter").send_keys("linear1")
    sites = rows(opened, 0)
    assert sites and all("linear1" in site for site in sites)
    assert opened.find_element("id", "shown").text == f"{len(sites)} of {len(record['sites'])} sites shown"


def test_choosing_a_site(opened, record):
    index = next(i for i, row in enumerate(record["sites"]) if row["role"] == "softmax")
    opened.find_elements("css selector", ".cell")[index].send_keys(" ")
    assert opened.find_element("id", "chosen-site").text == record["sites"][index]["site"]
    assert "Softmax rows lose" in opened.find_element("id", "chosen-words").text
    for drawn in ("bar", "level"):
        assert len(opened.find_elements("css selector", f"#distribution .{drawn}")) > 1
    opened.find_element("css selector", "input[value=error]").click()
    shades = opened.execute_script("return [...document.querySelectorAll('.cell[data-shade]')].length")
    assert shades == sum("snr_db" in row for row in record["sites"])


def test_the_page_of_a_detector(browser, screen, tmp_path, monkeypatch):
    monkeypatch.setattr("onespike.reports.record.DRAWN_SCALES", ())
    scenes = runs.choose("bundled:scenes-calibration", 2)
    pair = runs.convert_network(load_model("bundled:scenes"), scenes, preset("sformer"))
    items = runs.choose_labeled(pair.loaded, "bundled:scenes-test", None, 2)
    opened = open_page(browser, gather(Path("run"), pair, items), tmp_path)
    assert opened.get_log("browser") == []
    assert screen(390) <= 390 and screen(1280) <= 1280
    loaded = (
        "return [...document.querySelectorAll('.pictures img')].map(i => i.complete && i.naturalWidth > 99)"
    )
    assert opened.execute_script(loaded) == [True] * 4  # two images, two networks
