"""`onespike reproduce` as it is typed."""

from __future__ import annotations

import json

from command_line import CALIBRATION

from onespike.runtime.validated import sealed


def test_the_list_names_every_study(cli):
    from onespike.studies.reproduce import STUDIES

    result = cli("reproduce", "list")
    assert not any(line.startswith(" ") for line in result.out.splitlines())
    assert result.code == 0
    for name in STUDIES:
        assert name in result.out


def test_a_study_with_weights_and_data_of_ones_own(cli, tmp_path, vit_weights):
    words = (
        f"reproduce table-percentile --model bundled:cifar10-vit --weights {vit_weights} --data "
        f"bundled:cifar10-test --calibrate {CALIBRATION} --images 4 --limit 6 --out "
        f"{tmp_path / 'out'}",
    )  # fmt: skip
    result = cli(*words).good()
    assert "score: top-1 accuracy, %" in result.out
    assert "paper score" in (tmp_path / "out" / "table-percentile.csv").read_text()
    names = {file.suffix for file in (tmp_path / "out").iterdir()}
    assert names == {".csv", ".json", ".md", ".pdf", ".png", ".svg", ".tex"}
    record = json.loads((tmp_path / "out" / "table-percentile.json").read_text())
    assert record["made"]["command"].startswith("onespike reproduce table-percentile ") and record["versions"]
    assert {(row["data"], row["paper data"]) for row in record["rows"]} == {("cifar10-test", "ImageNet-1K")}
    finished = tmp_path / "out" / "measured.json"  # changed and sealed again: read in order
    changed = json.loads(finished.read_text())
    for row in changed["measured"].values():
        row["metric"] = [[]]
    finished.write_text(sealed({key: value for key, value in changed.items() if key != "sha256"}))
    cli(*words).good()


def test_a_study_is_repeated_over_calibrations(cli, tmp_path):
    words = ("reproduce", "table-classification", "--images", 4, "--limit", 6, "--repeat", 2)
    result = cli(*words, "--seed", 1, "--out", tmp_path / "out").good()
    assert "Scores are means over 2 calibrations on 4 images each" in " ".join(result.out.split())
    row = json.loads((tmp_path / "out" / "table-classification.json").read_text())["rows"][0]
    assert row["lowest"] <= row["score"] <= row["highest"] and row["sd"] >= 0
    assert (
        "another network, of other images or at other prices"
        in cli(*words, "--seed", 2, "--out", tmp_path / "out").message()
    )


def test_ctrl_c_says_that_finished_rows_are_kept(cli, tmp_path, monkeypatch):
    from onespike.studies.reproduce import Bench

    def interrupt(self, recipe):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", interrupt)
    message = cli("reproduce", "table-percentile", "--limit", 4, "--out", tmp_path).message()
    assert message == "interrupted, finished rows are kept. Run the same command again to go on."
