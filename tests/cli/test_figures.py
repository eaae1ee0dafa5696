"""What commands leave for papers: JSON that says how it was made, tables, prices; and where it goes, tried before the work."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from command_line import CALIBRATION, TEST, VIT, stored

from image_folders import noise
from onespike.runtime.provenance import CHECKOUT, processor

FEW = ("--data", TEST, "--limit", 4)
COMMANDS = {
    "evaluate": FEW,
    "inspect": (),
    "search": ("--data", TEST, "--limit", 4, "--trials", 2, "--objective", "kl"),
    "doctor": (*FEW, "--images", 2),
    "doctor --passes": (*FEW, "--passes", "nearest", "--budget", 0.3),
    "evaluate --format": (*FEW, "--format", "eager"),
}


def check(made: dict[str, str], versions: dict[str, str], command: str) -> None:
    assert made["processor"] == processor() and re.fullmatch(r"\d+ of \d+", made["threads"])
    assert made["command"].startswith(f"onespike {command} ")
    assert (re.fullmatch(r"[0-9a-f]{40}(-dirty)?", made.get("commit", "")) is not None) == (
        CHECKOUT / ".git"
    ).exists()
    assert {"torch", "numpy"} <= set(versions)


@pytest.mark.parametrize("command", COMMANDS)
def test_json_says_how_it_was_made(figures, run, command):
    _, record = figures(command.split()[0], run, *COMMANDS[command])
    check(record.pop("made"), record.pop("versions"), command.split()[0])
    assert record


@pytest.mark.parametrize("ending", [".csv", ".tex"])
def test_tables_have_the_form_of_the_ending(cli, run, tmp_path, ending):
    file = tmp_path / f"table{ending}"
    done = cli("evaluate", run, *FEW, "--out", file).good()
    second = (tmp_path / f"table-2{ending}").read_text()
    if ending == ".csv":
        [headers, original, spiking] = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
        assert headers[:2] == ["", "top-1 %"] and float(original[1]) >= 0 and spiking[0].startswith("spiking")
        rows = {row["energy"]: row for row in csv.DictReader(second.splitlines())}
        assert f"{float(rows['counts']['ratio']):.3f}" in done.out and rows["w8a8"]["of what spikes"] == ""
    else:
        assert file.read_text().splitlines()[0] == r"\begin{tabular}{lrrrrr}"
        assert r"top-1 \%" in file.read_text() and r"\begin{tabular}{lrrrr}" in second
    refused = cli("evaluate", run, *FEW, "--out", file)
    assert refused.message() == f"{file} exists. Choose another name or remove it."


def test_prices_of_another_profile(cli, figures, run, tmp_path):
    """In every command that states energy; each also names them."""
    prices = ("--profile", "horowitz-45nm-sram")
    cli("report", run, *FEW, *prices).good()
    record = stored(run / "report" / "report.json")
    _, evaluated = figures("evaluate", run, *FEW, *prices)
    assert record["evaluation"]["profile"] == evaluated["profile"] == "horowitz-45nm-sram"
    assert record["evaluation"]["energy"] == evaluated["energy"]
    check(record["made"], record["versions"], "report")
    assert (run / "report" / "report.tex").is_file() and (run / "report" / "report.csv").is_file()

    cli("report", run, run, *FEW, *prices, "--out", tmp_path / "both").good()
    compared = stored(tmp_path / "both" / "compare.json")
    check(compared["made"], compared["versions"], "report")
    assert [r["evaluation"]["energy"] for r in compared["runs"]] == [evaluated["energy"]] * 2

    words = ("search", run, *FEW, "--trials", 2, "--objective", "kl", "--budget", 99)
    dear, cheap = (figures(*words, *more)[1]["trials"] for more in (prices, ()))
    assert [t["scale"] for t in dear] == [t["scale"] for t in cheap]
    assert all(a["energy"] > 1.1 * b["energy"] for a, b in zip(dear, cheap, strict=True))


def test_figures_replace_figures_only(cli, tmp_path, vit_run):
    """`--json run/run.json` would take the run's own record away."""
    png = noise(tmp_path / "images" / "a.png", 1)
    for place in (vit_run / "run.json", vit_run / "weights.safetensors", png):
        before = place.read_bytes()
        assert cli("evaluate", vit_run, "--data", TEST, "--limit", 2, "--json", place).message() == (
            f"{place} exists and holds no figures. Choose another --json or remove it."
        )
        assert place.read_bytes() == before
    out = tmp_path / "figures.json"
    out.write_text("[]")
    for _ in range(2):
        cli("evaluate", vit_run, "--data", TEST, "--limit", 2, "--json", out).good()


def test_places_are_tried_before_the_work_starts(cli, monkeypatch, tmp_path, vit_run):
    """Nothing is loaded or measured for a result that could not be written."""

    def work(*_: object, **__: object) -> None:
        pytest.fail("the work has started")

    for name in ("runs.evaluate_pair", "adapters.load_model", "runs.searching.search_run",
                 "diagnosis.checkup", "studies.ablate.ablate_run", "reports.record.gather"):  # fmt: skip
        monkeypatch.setattr(f"onespike.{name}", work)
    file = tmp_path / "file"
    file.touch()
    a_folder = f"{tmp_path}: this is a folder. Give the name of a file."
    a_file = f"{file}: this is a file. Give the name of a folder."
    within = f"{file / 'in'}: a part of this path is a file. Choose another place."
    data, json = (vit_run, "--data", TEST, "--limit", 2), ("--json", tmp_path)
    for words, message in {
        ("evaluate", *data, *json): a_folder,
        ("search", *data, *json): a_folder,
        ("doctor", *data, *json): a_folder,
        ("doctor", *data, *json, "--passes", "run"): a_folder,
        ("report", *data, "--out", file): a_file,
        ("report", *data, vit_run, "--out", file): a_file,
        ("demo", "--out", file): a_file,
        ("reproduce", "table-energy", "--out", file): a_file,
        ("convert", VIT, "--preset", "sformer", "--calibrate", CALIBRATION, "--out", file / "in"): within,
    }.items():
        assert cli(*words).message() == message
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_figures_go_to_a_device_and_are_printed_where_the_disk_is_full(cli, vit_run):
    words = f"evaluate {vit_run} --data {TEST} --limit 2 --json"
    cli(f"{words} /dev/null").good()
    full = cli(f"{words} /dev/full")
    assert full.message() == "/dev/full: the disk is full. Free some space or choose another place."
    assert "agreement" in full.out  # what was measured is not lost
