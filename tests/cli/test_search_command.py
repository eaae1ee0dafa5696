"""`onespike search` on an untrained network: what it writes, skips, keeps and refuses."""

from __future__ import annotations

import json

import pytest
from command_line import CALIBRATION, TEST, VIT

from onespike import storage


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from onespike import pipeline, preset
    from onespike.adapters import load_model

    folder = tmp_path_factory.mktemp("search") / "run"
    pair = pipeline.convert_network(
        load_model(VIT, random_weights=True), pipeline.choose(CALIBRATION, 8), preset("sformer")
    )
    pipeline.save_run(folder, pair)
    return folder


def test_a_search_keeps_its_best_scale_in_the_run(cli, made, tmp_path):
    words = (
        "search",
        made,
        "--data",
        TEST,
        "--objective",
        "kl",
        "--sampler",
        "grid",
        "--pareto",
        "--limit",
        6,
    )
    result = cli(*words, "--trials", 3, "--json", tmp_path / "s.json")
    assert result.code == 0, result
    record = json.loads((tmp_path / "s.json").read_text())
    assert [round(t["scale"], 6) for t in record["trials"]] == [1.0, 0.1, 0.01]
    assert {"trials", "best", "seconds", "forwards"} <= set(record)
    assert record["best"]["value"] == min(t["value"] for t in record["trials"] if t["value"] is not None)
    assert record["forwards"] >= 6 * 3
    assert storage.load(made).recipe.scale == record["best"]["scale"]
    kept = json.loads((made / "search" / "search.json").read_text())
    assert len(kept["names"]) == 6
    assert (made / "search" / "search.png").read_bytes().startswith(b"\x89PNG")
    assert "best λ" in result.out
    again = cli(*words, "--trials", 3)
    assert "has trials already. Continue it with --resume, or name another --storage." in again.message()
    assert cli(*words, "--trials", 3, "--resume").code == 0
    message = cli(*words[:-1], 5, "--trials", 3, "--resume").message()
    assert "belongs to another search (it differs in images)" in message


def test_calibration_images_are_skipped(cli, made, tmp_path):
    storage_url = f"sqlite:///{tmp_path / 'study.db'}"
    result = cli(
        "search",
        made,
        "--data",
        CALIBRATION,
        "--objective",
        "kl",
        "--trials",
        1,
        "--limit",
        300,
        "--storage",
        storage_url,
    )
    assert result.code == 0, result
    kept = json.loads((made / "search" / "search.json").read_text())
    used = json.loads((made / "run.json").read_text())["data"]["names"]
    assert len(kept["names"]) == 256 - 8
    assert not set(kept["names"]) & set(used)


@pytest.mark.parametrize(("words", "message"), [
    (("--objective", "loss"), "unknown objective 'loss'. Known: kl, top1."),
    (("--sampler", "random"), "unknown sampler 'random'. Known: gp, grid, tpe."),
    (("--budget", "0"), "the budget must be above 0, not 0. The paper's networks use 0.15 to 0.19."),
    (("--energy", "joule"), "unknown energy column 'joule'. Known: binary, counts, nonzero, strict."),
    (("--per-site", "block"), "unknown per-site choice 'block'. Known: kind, site."),
    (("--trials", "0"), "trials must be at least 1, not 0. The paper uses 50."),
])  # fmt: skip
def test_bad_options(cli, made, tmp_path, words, message):
    given = (
        "search",
        made,
        "--data",
        TEST,
        "--limit",
        2,
        "--storage",
        f"sqlite:///{tmp_path / 'study.db'}",
        *words,
    )
    assert cli(*given).message() == message
