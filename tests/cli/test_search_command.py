"""`onespike search` on an untrained network: what it writes, skips, keeps and refuses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from command_line import CALIBRATION, TEST, VIT, Result
from torch import nn

from onespike import calibrate, convert, storage
from onespike.objective import ScaleObjective


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
    (("--objective", "loss"), "unknown objective 'loss'. Known: ap, kl, top1."),
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


def copied(made, tmp_path):
    """A run of one's own, without the searches of other tests."""
    shutil.copytree(made, tmp_path / "run", ignore=shutil.ignore_patterns("search"))
    return tmp_path / "run"


SLOW = """
import time
from onespike.cli import main
from onespike.objective import ScaleObjective

measure = ScaleObjective.__call__
def slowly(self, scale, hopeless):
    if self.forwards > 4:  # 2 of the original network, 2 of the first trial: the third trial lasts
        time.sleep(600)
    return measure(self, scale, hopeless)
ScaleObjective.__call__ = slowly
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
def test_ctrl_c_keeps_the_finished_trials(cli, made, tmp_path):
    run = copied(made, tmp_path)
    words = (
        "search",
        run,
        "--data",
        TEST,
        "--objective",
        "kl",
        "--sampler",
        "grid",
        "--trials",
        3,
        "--limit",
        2,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    lines = iter(process.stderr.readline, "")
    assert any(line.startswith("trial 2/3") for line in lines)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=900)
    message = "interrupted, finished trials are kept. Go on with the same command and --resume."
    assert Result(process.returncode, "", err).message() == message
    result = cli(*words, "--resume", "--json", tmp_path / "s.json")
    assert result.code == 0, result
    assert [line.split(":")[0] for line in result.err.splitlines() if line.startswith("trial")] == [
        "trial 3/3"
    ]
    assert [round(t["scale"], 6) for t in json.loads((tmp_path / "s.json").read_text())["trials"]] == [
        1,
        0.1,
        0.01,
    ]


def test_evaluate_notes_images_of_the_search(cli, made, tmp_path):
    run = copied(made, tmp_path)
    words = ("search", run, "--data", TEST, "--objective", "kl", "--trials", 1, "--limit", 3)
    assert cli(*words).code == 0
    found = cli("evaluate", run, "--data", TEST, "--limit", 3)
    assert "note: 3 of these images were used for the search, first cifar10-test/00000" in found.out
    (run / "search" / "search.json").write_text("{")
    message = cli("evaluate", run, "--data", TEST, "--limit", 3).message()
    assert message.endswith("search.json: the record of the search is damaged. Remove it, or search again.")


@pytest.mark.parametrize("kind", ["kl", "top1"])
def test_a_trial_is_one_forward(kind):
    torch.manual_seed(0)
    calls = {"ann": 0, "snn": 0}
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    snn = convert(model, calibrate(model, [torch.randn(16, 4)]))
    for name, network in (("ann", model), ("snn", snn)):
        network.register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    batches = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0])) for _ in range(5)]
    objective = ScaleObjective(model, snn, batches, kind)
    assert calls == {"ann": 5 if kind == "kl" else 0, "snn": 0}
    before = calls["ann"]
    for trial in range(1, 4):
        assert objective(0.1 * trial, lambda step, value: False).finished
        assert calls == {"ann": before, "snn": 5 * trial}
    assert objective.forwards == 4 * (before + 15)


def test_a_compiled_search_measures_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    snn = convert(model, calibrate(model, [torch.randn(16, 4)]))
    batches = [(torch.randn(4, 4), None)]
    eager, compiled = (ScaleObjective(model, snn, batches, "kl", compiled=choice) for choice in (False, True))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for scale in (1.0, 0.3, 0.05):
            expected = eager(scale, lambda step, value: False).value
            assert compiled(scale, lambda step, value: False).value == pytest.approx(expected, abs=1e-6)
