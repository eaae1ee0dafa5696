"""The doctor on runs that are broken on purpose: it names the right cause first, and leaves a healthy run alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from onespike import pipeline, preset
from onespike.adapters import load_model, renormalised
from onespike.doctor import checkup, findings

IMAGES = 40
PROBE = 32


def examined(run: Path = Path("run"), *, images: int = 64, normalisation=None, **changes):
    loaded = load_model("bundled:cifar10-vit")
    if normalisation is not None:
        loaded = renormalised(loaded, *normalisation)
    calibration = pipeline.choose("bundled:cifar10-calibration", images)
    pair = pipeline.convert_network(loaded, calibration, preset("sformer", **changes), batch_size=64)
    items = pipeline.choose("bundled:cifar10-test", IMAGES)
    return checkup(pair, items, run, images=PROBE, batch_size=PROBE // 2)


@pytest.fixture(scope="module")
def healthy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onespike.doctor.measure.WORST_KINDS", 1)
        return examined()


def test_a_healthy_run_has_no_alarming_finding(healthy):
    found = findings(healthy)
    assert not any(finding.alarming for finding in found), found
    assert len(found) <= 5
    shares = [finding.share or 0.0 for finding in found]
    assert shares == sorted(shares, reverse=True)
    assert healthy.better_normalisation is None
    assert healthy.normalisations["CIFAR-10"] == healthy.normalisations["as given"]


@pytest.fixture
def briefly(monkeypatch):
    """Without the measurements that these set-ups do not need."""
    monkeypatch.setattr("onespike.doctor.measure.WORST_KINDS", 0)
    monkeypatch.setattr("onespike.doctor.measure.VARIANTS", {})
    monkeypatch.setattr("onespike.doctor.measure.SCALES", (1.0, 0.25))
    monkeypatch.setattr("onespike.doctor.measure._kinds", lambda *_: {})


@pytest.mark.usefixtures("briefly")
def test_wrong_normalisation():
    first = findings(examined(normalisation=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))))[0]
    assert (first.cause, first.alarming) == ("normalisation", True), first
    assert first.share is not None and first.share > 0.5
    assert first.command == (
        "onespike convert bundled:cifar10-vit --calibrate bundled:cifar10-calibration --limit 64 --out run-2"
    )  # without the --mean and --std that were wrong
    assert "83.7 % is published" in first.evidence


@pytest.mark.usefixtures("briefly")
def test_a_scale_of_one():
    first = findings(examined(scale=1.0))[0]
    assert (first.cause, first.alarming) == ("scale", True), first
    assert first.share is not None and first.share > 0.5
    assert first.command.startswith("onespike search run --data bundled:cifar10-calibration")


@pytest.mark.usefixtures("briefly")
def test_two_calibration_images():
    first = findings(examined(images=2))[0]
    assert (first.cause, first.alarming) == ("calibration", True), first
    assert "--limit 128" in first.command


def test_findings_follow_from_measured_results_alone(healthy):
    overlapping = dataclasses.replace(healthy, overlap=3)
    first = findings(overlapping)[0]
    assert (first.cause, first.share) == ("overlap", None)
    assert first.title == "3 of 40 images were used for calibration as well"
    many = {**healthy.evaluation, "images": 1000}  # so that ten points are more than chance
    worse = dataclasses.replace(healthy, published=99.0, evaluation=many)
    assert findings(worse)[0].cause == "normalisation"
    unlabelled = {**healthy.evaluation, "ann": {"top1": None}, "snn": {"top1": None}}
    assert not any(f.alarming for f in findings(dataclasses.replace(healthy, evaluation=unlabelled)))
    sites = {name: {**row, "saturated": 0.2, "clipping": 1.0} for name, row in healthy.sites.items()}
    assert findings(dataclasses.replace(healthy, sites=sites))[0].cause == "saturation"
    sites = {name: {**row, "dead_channels": 0.5} for name, row in healthy.sites.items()}
    quiet = dataclasses.replace(healthy, sites=sites, kinds={}, scales=[], variants={})
    assert [f.cause for f in findings(quiet)] == ["dead"]
    assert findings(dataclasses.replace(quiet, sites=healthy.sites)) == []


def test_errors_are_split_where_they_arise(healthy):
    row = healthy.sites["blocks.0.attn:matmul1_lhs"]
    assert row["role"] == "softmax" and row["row_loss"] > 0
    for site in healthy.sites.values():
        assert site["fine"] + site["tail"] + site["clipping"] == pytest.approx(1.0)
    assert min(healthy.kinds.values()) < healthy.kl
    assert healthy.single and set(healthy.single) <= set(healthy.sites)
