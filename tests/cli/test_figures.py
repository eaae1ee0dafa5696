"""What commands leave for papers: JSON that says how it was made, tables, prices, and comparisons that name their figures."""

from __future__ import annotations

import csv
import re

import pytest
from command_line import TEST, stored

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
