"""`onespike search` on an untrained network: what it writes, skips, keeps and refuses."""

from __future__ import annotations

import pytest
import torch
from command_line import CALIBRATION, TEST, VIT, stored

from contract import networks
from onespike.energy.columns import beside
from onespike.runs import storage
from onespike.runs.searching import ScaleObjective
from onespike.tasks import Classification


def test_a_search_keeps_its_best_scale_in_the_run(cli, figures, run):
    words = (f"search {run} --data {TEST} --objective kl --sampler grid --energy counts", "--limit", 6)
    result, record = figures(*words, "--trials", 3)
    assert [round(t["scale"], 6) for t in record["trials"]] == [1.0, 0.1, 0.01]
    assert {"trials", "best", "seconds", "forwards"} <= set(record)
    assert record["best"]["value"] == min(t["value"] for t in record["trials"] if t["value"] is not None)
    assert record["forwards"] >= 6 * 3
    assert storage.load(run).recipe.scale == record["best"]["scale"]
    assert len(stored(run / "search" / "search.json")["names"]) == 6
    assert "best λ" in result.out
    again = cli(*words, "--trials", 3)
    assert "has trials already. Continue it with --resume, or start over with --fresh." in again.message()
    cli(*words, "--trials", 3, "--resume").good()
    message = cli(*words[:-1], 5, "--trials", 3, "--resume").message()
    assert "is of other inputs. Give the same ones" in message and message.endswith("with --fresh.")
    cli(*words[:-1], 5, "--trials", 3, "--fresh").good()
    assert len(stored(run / "search" / "search.json")["names"]) == 5
    evaluated = cli("evaluate", run, "--data", TEST, "--limit", 5)
    assert "note: 5 of these images were used for the search, first cifar10-test/00000" in evaluated.out


def test_a_search_says_what_its_scale_costs_in_the_run_s_own_column(cli, figures, converted, tmp_path):
    changes = {"passes": ("nearest",), "energy": "binary", "scale": 0.5}
    run = converted(VIT, CALIBRATION, 8, changes=changes, random_weights=True)
    words = f"search {run} --data {TEST} --objective kl --sampler grid --limit 4 --trials"
    dear, record = figures(f"{words} 2")
    spent = record["spent"]
    assert spent["column"] == "binary" and spent["after"] > 1.05 * spent["before"]
    after = beside("binary", spent["after"], spent["analog_share"])
    assert f"energy    {spent['before']:.3f} → {after} (binary, horowitz-45nm)" in dear.out
    assert "warning   the λ that is kept spends" in dear.out
    cheap = cli(f"{words} 1 --storage sqlite:///{tmp_path / 'other.db'} --energy binary")
    assert "energy (binary)" in cheap.out and "warning" not in cheap.out


def test_ctrl_c_keeps_the_finished_trials(cli, figures, run, monkeypatch):
    words = (f"search {run} --data {TEST} --objective kl --sampler grid --trials 3 --limit 2",)
    measure = ScaleObjective.__call__

    def interrupted(self, scale, hopeless):
        if self.forwards > 4:  # 2 of the original network, 2 of each finished trial
            raise KeyboardInterrupt
        return measure(self, scale, hopeless)

    with monkeypatch.context() as patched:
        patched.setattr(ScaleObjective, "__call__", interrupted)
        stopped = cli(*words)
    message = "interrupted, finished trials are kept. Go on with the same command and --resume."
    assert stopped.code == 2 and stopped.err.splitlines()[-1] == f"onespike: {message}"
    result, record = figures(*words, "--resume")
    trials = [line.split(":")[0] for line in result.err.splitlines() if line.startswith("trial")]
    assert trials == ["trial 3/3"]
    assert [round(t["scale"], 6) for t in record["trials"]] == [1, 0.1, 0.01]


@pytest.mark.parametrize("kind", ["kl", "top1"])
def test_a_trial_is_one_forward(kind):
    calls, model = {"ann": 0, "snn": 0}, networks.mlp()
    snn = networks.converted(model, networks.rows(16))
    for name, network in (("ann", model), ("snn", snn)):
        network.register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    batches = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0])) for _ in range(5)]
    objective = ScaleObjective(model, snn, batches, Classification().objectives[kind], None)
    assert calls == {"ann": 5 if kind == "kl" else 0, "snn": 0}
    before = calls["ann"]
    for trial in range(1, 4):
        assert objective(0.1 * trial, lambda step, value: False).finished
        assert calls == {"ann": before, "snn": 5 * trial}
    assert objective.forwards == 4 * (before + 15)
