"""The doctor on runs that are broken on purpose: it names the right cause first, and leaves a healthy run alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onespike import preset, runs
from onespike.adapters import load_model, renormalized
from onespike.diagnosis import checkup, diagnose, measurement


def examined(run: Path = Path("run"), *, images: int = 64, tested: int = 40, normalization=None, **changes):
    loaded = load_model("bundled:cifar10-vit")
    if normalization is not None:
        loaded = renormalized(loaded, *normalization)
    calibration = runs.choose("bundled:cifar10-calibration", images)
    pair = runs.convert_network(loaded, calibration, preset("sformer", **changes), batch_size=64)
    return checkup(pair, runs.choose("bundled:cifar10-test", tested), run, images=32, batch_size=16)


@pytest.fixture(scope="module")
def healthy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "WORST_KINDS", 1)
        patch.setattr(measurement, "PROBED_SCALES", (1.0, 0.25, 0.12))
        patch.setattr(measurement, "PASSES", ("nearest", "layout", "center", "allocate"))
        return examined()


@pytest.fixture
def briefly(monkeypatch):
    """Without the measurements that these set-ups do not need."""
    monkeypatch.setattr(measurement, "VARIANTS", {})
    monkeypatch.setattr(measurement, "PASSES", ())
    monkeypatch.setattr(measurement, "PROBED_SCALES", (1.0, 0.25))
    monkeypatch.setattr(measurement, "_sensitivity", lambda *_: ({}, {}))


def test_a_healthy_run_has_no_alarming_finding(healthy):
    findings = diagnose(healthy)
    assert not any(finding.alarming for finding in findings), findings
    assert len(findings) <= 5
    shares = [finding.share or 0.0 for finding in findings if finding.cause != "passes"]
    assert shares == sorted(shares, reverse=True)
    assert healthy.better_normalization is None
    assert healthy.normalizations["CIFAR-10"] == healthy.normalizations["as given"]
    assert min(healthy.kinds.values()) < healthy.kl
    assert healthy.single and set(healthy.single) <= set(healthy.sites)


def test_passes_come_first_where_they_were_not_used(healthy):
    before, after = healthy.passes
    assert after < 0.7 * before
    first = diagnose(healthy)[0]
    assert (first.cause, first.share) == ("passes", pytest.approx(1 - after / before, abs=0.2))
    assert f"{before:.3f} → {after:.3f} nats at the same energy" in first.evidence
    assert "--passes nearest,layout,center,allocate --out run-2" in first.command


@pytest.mark.usefixtures("briefly")
def test_remedies_are_measured_with_the_passes_of_the_run(monkeypatch):
    recipes, spike = [], measurement.spike

    def recorded(model, inputs, recipe, **others):
        recipes.append(recipe)
        return spike(model, inputs, recipe, **others)

    monkeypatch.setattr(measurement, "spike", recorded)
    monkeypatch.setattr(measurement, "VARIANTS", {"softmax thresholds per head": {"softmax": "head"}})
    monkeypatch.setattr(measurement, "PASSES", ("nearest",))
    measured = examined(images=8, tested=8, passes=("nearest",), budget=0.2, energy="binary")
    assert [(r.passes, r.softmax) for r in recipes] == [(("nearest",), "site"), (("nearest",), "head")]
    assert measured.passes is None and measured.energy == "binary"
    assert measured.recalibrated[1] == measured.variants["softmax thresholds per head"][0]
    assert "--budget" in measured.commands["scale"]


BROKEN = {
    "normalization": (
        {"normalization": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))},  # the remedy is without these --mean and --std
        "--limit 64 --preset sformer --out run-2",
    ),
    "scale": ({"scale": 1.0}, "onespike search run --data bundled:cifar10-calibration"),
    "calibration": ({"images": 2}, "--limit 128"),
}


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("cause", BROKEN)
def test_a_mistake_is_named_first(cause):
    changes, words = BROKEN[cause]
    first = diagnose(examined(**changes))[0]
    assert (first.cause, first.alarming) == (cause, True), first
    assert words in first.command and "--mean" not in first.command
    if cause != "calibration":
        assert first.share is not None and first.share > 0.5
    if cause == "normalization":
        assert "83.7 % is published" in first.evidence


def test_findings_follow_from_measured_results_alone(healthy):
    first = diagnose(replace(healthy, overlap=3))[0]
    assert (first.cause, first.share) == ("overlap", None)
    assert first.title == "3 of 40 images were used for calibration as well"
    many = {**healthy.evaluation, "images": 1000}  # so that ten points are more than chance
    assert diagnose(replace(healthy, published=99.0, evaluation=many))[0].cause == "normalization"
    unlabeled = {**healthy.evaluation, "ann": {"top1": None}, "snn": {"top1": None}}
    assert not any(f.alarming for f in diagnose(replace(healthy, evaluation=unlabeled)))
    sites = {name: {**row, "saturated": 0.2, "clipping": 1.0} for name, row in healthy.sites.items()}
    assert diagnose(replace(healthy, sites=sites))[0].cause == "saturation"
    sites = {name: {**row, "dead_channels": 0.5} for name, row in healthy.sites.items()}
    quiet = replace(healthy, sites=sites, kinds={}, scales=[], variants={}, passes=None)
    assert [f.cause for f in diagnose(quiet)] == ["dead"]
    assert diagnose(replace(quiet, sites=healthy.sites)) == []


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize(
    ("changes", "search"),
    [
        ({"steps": 2, "levels": "exponential:4"}, "onespike search 'a run' "),
        ({"neuron": "mtn", "levels": "linear:16"}, "onespike convert "),
    ],
)
def test_runs_that_take_no_passes_or_have_no_scale(changes, search, monkeypatch):
    monkeypatch.setattr(measurement, "PASSES", ("nearest", "center"))
    measured = examined(Path("a run"), images=4, tested=4, **changes)
    assert {"passes", "outliers"}.isdisjoint(measured.commands)
    assert "--out 'a run-2'" in measured.commands["calibration"]
    assert measured.commands["evaluate"] == "onespike evaluate 'a run' --data OTHER-IMAGES"
    assert measured.commands["search"].startswith(search)
    assert all(finding.command for finding in diagnose(measured))
