"""The doctor on runs that are broken on purpose: it names the right cause first, and leaves a healthy run alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from onespike import preset, runs
from onespike.adapters import load_model, renormalized
from onespike.diagnosis import checkup, diagnose

IMAGES = 40
PROBE = 32


def examined(run: Path = Path("run"), *, images: int = 64, normalization=None, **changes):
    loaded = load_model("bundled:cifar10-vit")
    if normalization is not None:
        loaded = renormalized(loaded, *normalization)
    calibration = runs.choose("bundled:cifar10-calibration", images)
    pair = runs.convert_network(loaded, calibration, preset("sformer", **changes), batch_size=64)
    items = runs.choose("bundled:cifar10-test", IMAGES)
    return checkup(pair, items, run, images=PROBE, batch_size=PROBE // 2)


@pytest.fixture(scope="module")
def healthy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onespike.diagnosis.measurement.WORST_KINDS", 1)
        return examined()


def test_a_healthy_run_has_no_alarming_finding(healthy):
    found = diagnose(healthy)
    assert not any(finding.alarming for finding in found), found
    assert len(found) <= 5
    shares = [finding.share or 0.0 for finding in found if finding.cause != "passes"]
    assert shares == sorted(shares, reverse=True)
    assert healthy.better_normalization is None
    assert healthy.normalizations["CIFAR-10"] == healthy.normalizations["as given"]


@pytest.fixture
def briefly(monkeypatch):
    """Without the measurements that these set-ups do not need."""
    monkeypatch.setattr("onespike.diagnosis.measurement.WORST_KINDS", 0)
    monkeypatch.setattr("onespike.diagnosis.measurement.VARIANTS", {})
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ())
    monkeypatch.setattr("onespike.diagnosis.measurement.PROBED_SCALES", (1.0, 0.25))
    monkeypatch.setattr("onespike.diagnosis.measurement._kinds", lambda *_: {})


def test_passes_come_first_where_they_were_not_used(healthy):
    before, after = healthy.passes
    assert after < 0.7 * before
    first = diagnose(healthy)[0]
    assert (first.cause, first.share) == ("passes", pytest.approx(1 - after / before, abs=0.2))
    assert f"{before:.3f} → {after:.3f} nats at the same energy" in first.evidence
    assert (
        "--passes nearest,layout,positions,center,allocate,weigh,correct,refit --out run-2" in first.command
    )


@pytest.mark.usefixtures("briefly")
def test_remedies_are_measured_with_the_passes_of_the_run(monkeypatch):
    from onespike.diagnosis import measurement

    recipes, spike = [], measurement.spike

    def recorded(model, inputs, recipe, **others):
        recipes.append(recipe)
        return spike(model, inputs, recipe, **others)

    monkeypatch.setattr(measurement, "spike", recorded)
    monkeypatch.setattr(measurement, "VARIANTS", {"softmax thresholds per head": {"softmax": "head"}})
    monkeypatch.setattr(measurement, "PASSES", ("nearest",))
    found = examined(images=16, passes=("nearest",), budget=0.2, energy="binary")
    assert [recipe.passes for recipe in recipes] == [("nearest",)] * 2
    assert [recipe.softmax for recipe in recipes] == ["site", "head"]
    assert found.passes is None and found.energy == "binary"
    assert found.recalibrated[1] == found.variants["softmax thresholds per head"][0]
    assert "--budget" in found.commands["scale"]


@pytest.mark.usefixtures("briefly")
def test_wrong_normalization():
    first = diagnose(examined(normalization=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))))[0]
    assert (first.cause, first.alarming) == ("normalization", True), first
    assert first.share is not None and first.share > 0.5
    assert first.command == (
        "onespike convert bundled:cifar10-vit --calibrate bundled:cifar10-calibration --limit 64 "
        "--preset sformer --out run-2"
    )  # without the --mean and --std that were wrong
    assert "83.7 % is published" in first.evidence


@pytest.mark.usefixtures("briefly")
def test_a_scale_of_one():
    first = diagnose(examined(scale=1.0))[0]
    assert (first.cause, first.alarming) == ("scale", True), first
    assert first.share is not None and first.share > 0.5
    assert first.command.startswith("onespike search run --data bundled:cifar10-calibration")


@pytest.mark.usefixtures("briefly")
def test_two_calibration_images():
    first = diagnose(examined(images=2))[0]
    assert (first.cause, first.alarming) == ("calibration", True), first
    assert "--limit 128" in first.command


def test_findings_follow_from_measured_results_alone(healthy):
    overlapping = dataclasses.replace(healthy, overlap=3)
    first = diagnose(overlapping)[0]
    assert (first.cause, first.share) == ("overlap", None)
    assert first.title == "3 of 40 images were used for calibration as well"
    many = {**healthy.evaluation, "images": 1000}  # so that ten points are more than chance
    worse = dataclasses.replace(healthy, published=99.0, evaluation=many)
    assert diagnose(worse)[0].cause == "normalization"
    unlabeled = {**healthy.evaluation, "ann": {"top1": None}, "snn": {"top1": None}}
    assert not any(f.alarming for f in diagnose(dataclasses.replace(healthy, evaluation=unlabeled)))
    sites = {name: {**row, "saturated": 0.2, "clipping": 1.0} for name, row in healthy.sites.items()}
    assert diagnose(dataclasses.replace(healthy, sites=sites))[0].cause == "saturation"
    sites = {name: {**row, "dead_channels": 0.5} for name, row in healthy.sites.items()}
    quiet = dataclasses.replace(healthy, sites=sites, kinds={}, scales=[], variants={}, passes=None)
    assert [f.cause for f in diagnose(quiet)] == ["dead"]
    assert diagnose(dataclasses.replace(quiet, sites=healthy.sites)) == []


def test_errors_are_split_where_they_arise(healthy):
    row = healthy.sites["blocks.0.attn:matmul1_lhs"]
    assert row["role"] == "softmax" and row["row_loss"] > 0
    for site in healthy.sites.values():
        assert site["fine"] + site["tail"] + site["clipping"] == pytest.approx(1.0)
    assert min(healthy.kinds.values()) < healthy.kl
    assert healthy.single and set(healthy.single) <= set(healthy.sites)


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize(
    "changes", [{"steps": 2, "levels": "exponential:4"}, {"neuron": "mtn", "levels": "linear:16"}]
)
def test_runs_that_take_no_passes_or_have_no_scale(changes, monkeypatch):
    monkeypatch.setattr("onespike.diagnosis.measurement.PASSES", ("nearest", "center"))
    found = examined(Path("a run"), images=4, **changes)
    assert {"passes", "outliers"}.isdisjoint(found.commands)
    assert "--out 'a run-2'" in found.commands["calibration"]
    assert found.commands["evaluate"] == "onespike evaluate 'a run' --data OTHER-IMAGES"
    assert found.commands["search"].startswith(
        "onespike search 'a run' " if "steps" in changes else "onespike convert "
    )
    assert all(finding.command for finding in diagnose(found))
