"""Padding is neither calibrated nor counted, and texts may differ in length."""

from __future__ import annotations

import pytest
import torch

import onespike
from onespike.energy.metering import metered
from onespike.tasks import Embedding


class Pooled(torch.nn.Module):
    """A small encoder whose states are averaged over the tokens of each text."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=16, initializer_range=0.4,
        )  # fmt: skip
        self.encoder = BertModel(config, add_pooling_layer=False).eval()

    def forward(self, input_ids, attention_mask):
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return (states * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)


@pytest.fixture(scope="module")
def texts():
    """Texts of three lengths: as one padded batch, and one by one."""
    generator = torch.Generator().manual_seed(0)
    alone = [torch.randint(1, 32, (1, n), generator=generator) for n in (4, 7, 10)]
    ids, mask = torch.zeros(3, 10, dtype=torch.long), torch.zeros(3, 10, dtype=torch.long)
    for row, one in enumerate(alone):
        ids[row, : one.shape[1]], mask[row, : one.shape[1]] = one[0], 1
    single = [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in alone]
    return {"input_ids": ids, "attention_mask": mask}, single


def test_a_padded_batch_calibrates_as_its_texts_do(texts):
    padded, single = texts
    model = Pooled()
    together, apart = onespike.calibrate(model, [padded]), onespike.calibrate(model, single)
    for site, threshold in apart.items():
        # sums over keys are made in another order
        torch.testing.assert_close(
            together[site].positive, threshold.positive, rtol=4e-3, atol=1e-6, msg=site
        )
        assert together[site].largest == pytest.approx(threshold.largest, rel=1e-4), site


def test_a_padded_batch_costs_what_its_texts_cost(texts):
    padded, single = texts
    model = Pooled()
    snn = onespike.convert(model, onespike.calibrate(model, single), onespike.Recipe(scale=0.2))
    with torch.inference_mode():
        with metered(snn) as together:
            snn(**padded)
        with metered(snn) as apart:
            for text in single:
                snn(**text)
    assert together.macs == apart.macs
    assert together.ratio("counts") == pytest.approx(apart.ratio("counts"), rel=0.02)


def test_passes_take_texts_of_several_lengths(texts):
    padded, single = texts
    model, task = Pooled(), Embedding()
    recipe = onespike.Recipe(passes=("nearest", "layout", "center", "tokens", "allocate"), scale=0.2)
    with torch.inference_mode():
        expected = torch.cat([model(**text) for text in single])
    for batches in ([padded, single[0]], single):
        snn = onespike.spike(model, batches, recipe, task=task)
        with torch.inference_mode():
            found = torch.cat([snn(**text) for text in single])
        assert float(task.divergence(expected, found)) / 3 < 0.1
