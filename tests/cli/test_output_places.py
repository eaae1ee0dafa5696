"""Where figures go: files, devices, places that cannot be written, tried before the work starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CALIBRATION, TEST, VIT

from image_folders import noise


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


def test_what_the_system_refuses(cli, monkeypatch, vit_run):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(vit_run / "run.json"))

    monkeypatch.setattr("onespike.runs.storage._read_record", refuse)
    assert cli("inspect", vit_run).message() == (
        f"{vit_run / 'run.json'}: Permission denied. Check the path, its permissions and the disk."
    )


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
