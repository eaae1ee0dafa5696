"""The survey of sites by hand, and where networks part."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from contract.networks import Layers, converted, counted
from onespike.conversion.firing import Neurons
from onespike.diagnosis.probe import Probe, analog, trail
from onespike.energy.ledger import Ledger
from onespike.energy.survey import BINS, Survey
from onespike.neurons import ScaleFire
from onespike.tasks.inferred import infer


@pytest.fixture
def surveyed():
    """One neuron with step 1 and levels 1, 2, 3, 5, 9 on a linear map of four features."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    torch.manual_seed(0)
    snn = converted(model, torch.randn(32, 4))
    owner = next(m for m in snn.modules() if isinstance(m, Neurons) and m.owner == "1")
    owner["linear0_input"] = ScaleFire(1.0, 0.0, levels=(1, 2, 3, 5, 9))
    with torch.no_grad():
        snn[0].weight.copy_(torch.eye(4))
        snn[0].bias.zero_()
    return snn


def test_errors_by_hand(surveyed):
    x = torch.tensor([[1.25, 4.25, 12.0, -0.5], [0.0, 2.0, 0.0, 0.0]])
    row = counted(surveyed, x, ledger=Survey()).details["1:linear0_input"]
    # 1.25 → 1; 4.25 → 3, since the threshold of 5 is 4.5; 12 → 9; −0.5 has no side to go to; 2 → 2
    assert row.fine == pytest.approx(0.25**2)
    assert row.tail == pytest.approx(1.25**2)
    assert row.clipping == pytest.approx(3.0**2 + 0.5**2)
    assert sum(row.to_dict()[share] for share in ("fine", "tail", "clipping")) == pytest.approx(1)
    assert row.signal == pytest.approx(float(x.square().sum()))
    assert row.snr_db == pytest.approx(10 * math.log10(row.signal / row.noise))
    assert (row.elements, row.largest) == (8, 12.0)
    assert row.above == 5  # of the threshold 1 on the positive side, 0 on the side that is off
    assert row.to_dict()["dead_channels"] == 0.25  # the fourth feature never fires
    assert int(row.histogram.sum()) == 8 and len(row.histogram) == BINS


def test_the_ledger_is_the_same_and_only_the_first_visits_are_surveyed(surveyed):
    torch.manual_seed(1)
    batches = torch.randn(6, 8, 4)
    plain, survey = (counted(surveyed, *batches, ledger=ledger) for ledger in (Ledger(), Survey(visits=2)))
    assert survey.ratios() == plain.ratios()
    assert survey.details["1:linear0_input"].elements == 2 * 8 * 4


def test_softmax_rows_lose_what_their_neurons_do_not_fire():
    torch.manual_seed(0)
    attend = Layers(lambda self, x: (x @ x.mT * 3).softmax(-1) @ x)
    batches = [torch.randn(4, 6, 5) for _ in range(3)]
    model = nn.Sequential(nn.Linear(5, 5), attend, nn.Linear(5, 2))
    snn = converted(model, torch.cat(batches))
    row = counted(snn, batches[0], ledger=Survey()).details["1:matmul1_lhs"]
    assert row.role == "softmax" and row.rows == 24
    assert 0 < row.row_loss / row.rows < 0.5


def test_sites_may_stay_analog_for_a_while(surveyed):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    original = nn.Sequential(*(nn.Linear(4, n) for n in (4, 4, 2)))
    for mine, theirs in zip(original, (surveyed[0], surveyed[1], surveyed[2]), strict=True):
        mine.load_state_dict({k: v for k, v in theirs.state_dict().items() if "neurons" not in k})
    probe = Probe(original, x.split(8), infer(original(x)))
    assert probe.distance(surveyed).kl > 1e-3
    with analog(surveyed, lambda site: True):
        assert probe.distance(surveyed).kl == pytest.approx(0, abs=1e-6)
    assert all(module.visitor is None for module in surveyed.modules() if isinstance(module, Neurons))
    path = dict(trail(surveyed, x))
    assert path["1:linear0_input"] == 99.0  # nothing has spiked before it
    assert path["2:linear0_input"] < 40.0


def test_errors_with_a_center_and_a_gain(surveyed):
    owner = next(m for m in surveyed.modules() if isinstance(m, Neurons) and m.owner == "1")
    owner["linear0_input"] = ScaleFire(
        1.0, 1.0, levels=(1, 2, 3, 5, 9), center=torch.tensor([10.0, 0.0, 0.0, 3.0]), gain=torch.tensor(2.0)
    )
    # seen as 1.25, 4.25, 15 and 0, worth 2, 6, 18 and 0 above the centers
    x = torch.tensor([[12.5, 8.5, 30.0, 3.0]])
    row = counted(surveyed, x, ledger=Survey()).details["1:linear0_input"]
    assert row.fine == pytest.approx(0.5**2)
    assert row.tail == pytest.approx(2.5**2)
    assert row.clipping == pytest.approx(12.0**2)
    assert row.to_dict()["dead_channels"] == 0.25  # the fourth feature sends nothing: its value is the center
