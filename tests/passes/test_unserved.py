"""Sites of which passes learn nothing keep their thresholds, and the network still runs at other lengths."""

from __future__ import annotations

import pytest
import torch
from small_networks import attention, tokens
from torch import Tensor, nn

import onespike
from onespike.errors import OnespikeWarning, UsageError

PASSES = ("nearest", "positions", "center", "allocate", "weigh", "correct", "refit")


class Chooser(nn.Module):
    """A scorer chooses tokens, so no gradient reaches it; `shared` reads eight tokens and then three."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, 5)
        self.scores = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
        self.inner, self.shared = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        chosen = self.scores(x).topk(3, dim=1).indices
        few = x.relu().gather(1, chosen.expand(-1, -1, x.shape[-1]))
        few = self.shared(self.inner(few).relu()).mean(1) + self.shared(x.relu()).mean(1)
        return self.head(few.relu())


UNSERVED = ("scores.0:linear0_input", "scores.2:linear0_input", "shared:linear0_input")


def chooser() -> nn.Module:
    torch.manual_seed(0)
    return Chooser().eval()


def test_they_keep_the_thresholds_of_calibration_with_one_warning() -> None:
    model, batches = chooser(), tokens()
    with pytest.warns(OnespikeWarning, match="keep the thresholds of calibration") as caught:
        snn = onespike.spike(model, batches, "sformer", passes=PASSES, budget=0.3)
    assert [str(one.message) for one in caught] == [
        "passes: 3 of 4 sites keep the thresholds of calibration, since their sizes differ from call to call or with the "
        f"length of a text, or no gradient or no input reaches them: {', '.join(UNSERVED)}. Leave them analog with exclude, "
        "or give calibration inputs of one size."
    ]
    before, neurons = onespike.calibrate(model, batches), dict(onespike.named_neurons(snn))
    for site, neuron in neurons.items():
        if str(site) in UNSERVED:
            literal = before[str(site)]
            assert torch.equal(neuron.positive, literal.positive)
            assert (neuron.levels, neuron.rounding) == (literal.levels, "paper")
    inner = neurons[onespike.Site.parse("inner:linear0_input")]
    assert inner.rounding == "nearest" and inner.positive.numel() == 16
    assert torch.isfinite(snn(batches[0])).all()


def test_where_no_site_can_be_improved_the_error_says_so() -> None:
    batches = [torch.randn(16, length, 6) for length in (8, 9)]
    message = r"no site can be improved: .* Give calibration inputs of one size, or "
    with pytest.raises(UsageError, match=message):
        onespike.spike(attention(), batches, "sformer", passes=("positions",))


@pytest.mark.parametrize("integers", [False, True])
def test_another_number_of_tokens_after_positions_is_one_clear_line(integers: bool) -> None:
    snn = onespike.spike(attention(), tokens(), "sformer", passes=("positions",))
    snn = onespike.optimize(snn, integer_units=True) if integers else snn
    with pytest.raises(UsageError) as caught:
        snn(torch.randn(2, 3, 6))
    assert str(caught.value) == (
        "blocks.0.qkv:linear0_input: its steps are set for 9 positions, and this input has 4. Give inputs as long as those of "
        "calibration, or convert without the pass 'positions'."
    )


class Captioner(nn.Module):
    """Reads a picture of nine patches and a text of any length, each with its own map."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.words = nn.Linear(6, 16), nn.Embedding(20, 16)
        self.of_patches, self.of_words = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        seen = self.of_patches(self.patches(pixels).relu()).relu().mean(1, keepdim=True)
        read = self.of_words(self.words(ids) * (seen + 1)).relu() + seen
        late = torch.logspace(-2, 2, read.shape[1])[:, None]  # late words matter most
        return self.head((read * late).mean(1))


def test_positions_of_a_text_beside_a_picture_are_left_alone() -> None:
    torch.manual_seed(0)
    model = Captioner().eval()
    batches = [
        (torch.randn(16, 9, 6) * torch.arange(1, 10)[:, None], torch.randint(20, (16, 7))) for _ in range(3)
    ]
    snn = onespike.spike(model, batches, "sformer", passes=("positions", "allocate"))
    neurons = {str(s): getattr(n, "gain", None) for s, n in onespike.named_neurons(snn)}
    gains = {site: gain.numel() for site, gain in neurons.items() if gain is not None}
    assert gains == {"of_patches:linear0_input": 9}
    assert snn(batches[0][0], torch.randint(20, (16, 2))).shape == (16, 5)
