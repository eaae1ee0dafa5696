"""`onespike reproduce` as it is typed, theorems included."""

from __future__ import annotations

from command_line import CALIBRATION, TEST, VIT, reseal, stored


def test_a_study_with_weights_and_data_of_ones_own(cli, tmp_path, vit_weights):
    words = f"reproduce table-percentile --model {VIT} --weights {vit_weights} --data {TEST}"
    words += f" --calibrate {CALIBRATION} --images 4 --limit 6 --out {tmp_path / 'out'}"
    assert "score: top-1 accuracy, %" in cli(words).good().out
    record = stored(tmp_path / "out" / "table-percentile.json")
    assert record["made"]["command"].startswith("onespike reproduce table-percentile ") and record["versions"]
    assert {(row["data"], row["paper data"]) for row in record["rows"]} == {("cifar10-test", "ImageNet-1K")}
    finished = tmp_path / "out" / "measured.json"  # changed and sealed again: read in order
    measured = stored(finished)["measured"]
    reseal(finished, measured={key: {**row, "metric": [[]]} for key, row in measured.items()})
    cli(words).good()


def test_a_study_is_repeated_over_calibrations(cli, tmp_path):
    words = ("reproduce", "table-classification", "--images", 4, "--limit", 6, "--repeat", 2)
    result = cli(*words, "--seed", 1, "--out", tmp_path / "out").good()
    assert "Scores are means over 2 calibrations on 4 images each" in " ".join(result.out.split())
    row = stored(tmp_path / "out" / "table-classification.json")["rows"][0]
    assert row["lowest"] <= row["score"] <= row["highest"] and row["sd"] >= 0
    message = cli(*words, "--seed", 2, "--out", tmp_path / "out").message()
    assert "another network, of other images or at other prices" in message


def test_ctrl_c_says_that_finished_rows_are_kept(cli, tmp_path, monkeypatch):
    from onespike.studies.reproduce import Bench

    def interrupt(self, recipe):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", interrupt)
    stopped = cli("reproduce", "table-percentile", "--limit", 4, "--out", tmp_path)
    message = "interrupted, finished rows are kept. Run the same command again to go on."
    assert stopped.code == 2 and stopped.err.splitlines()[-1] == f"onespike: {message}"


def test_theorems_and_the_neurons_of_a_run(cli, vit_run):
    alone = cli("reproduce", "theorems", "--trials", 2).good()
    names = [line.split("  ")[0] for line in alone.out.splitlines()]
    assert names == ["claim", "eq. 5", "theorem 1", "theorem 2", "theorem 3"]
    examined = cli("doctor", vit_run, "--data", TEST, "--limit", 4).good()
    assert "51 of 51 neurons reached\nsilent: none\n" in examined.out


def test_it_fails_if_a_claim_does_not_hold(cli, monkeypatch):
    from onespike.studies.theory import Row

    row = Row("theorem 9", "1 = 2", 3, 2, -1.0, "x = 0")
    monkeypatch.setattr("onespike.studies.theory.check_all", lambda trials, seed: [row])
    failed = cli("reproduce", "theorems")
    assert failed.code == 1
    assert "theorem 9 does not hold: x = 0" in failed.out
