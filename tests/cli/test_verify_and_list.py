"""The theorems, the neurons that take part, and lists."""

from __future__ import annotations

import sys

from command_line import TEST


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


def test_lists(cli):
    networks = cli("list", "models", "cifar10")
    assert networks.out.splitlines() == ["bundled:cifar10-resnet18", "bundled:cifar10-vit"]
    every = cli("list", "models").out.splitlines()
    assert {"timm:test_vit", "torchvision:resnet18", "transformers:ID-OR-DIR"} <= set(every)
    assert [line.split()[0] for line in cli("list", "neurons", "dual").out.splitlines()] == [
        "dual-if",
        "dual-mtn",
    ]
    assert "\n--set percentile=" in cli("list", "fields").out


def test_a_library_that_is_absent_does_not_hide_the_others(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    listed = cli("list", "models", "resnet18").good()
    assert {"timm:resnet18", "bundled:cifar10-resnet18"} <= set(listed.out.splitlines())
    assert listed.err == (
        "note: the list of torchvision models: it needs torchvision. "
        "Install it with: pip install 'onespike[torchvision]'\n"
        "next: onespike convert bundled:cifar10-vit --calibrate bundled:cifar10-calibration --out run\n"
    )
