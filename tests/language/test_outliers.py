"""The doctor names sites with values beyond their levels and the tokens that carry them; the pass `tokens` is the remedy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import onespike
from onespike.diagnosis.findings import _outliers
from onespike.diagnosis.probe import outliers
from onespike.tasks import Language


class Words:
    size = 16

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, ids, bare=False):
        return " ".join(f"w{i}" for i in ids)


class Massive(nn.Module):
    """Token 3 is four hundred times as large as the others, and only after the first linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, input_ids):
        x = self.first(self.table(input_ids))
        x = torch.where((input_ids == 3)[..., None], 400 * x, x)
        return self.head(self.second(x).tanh())


@pytest.fixture
def setting():
    """A network, its task and its texts."""
    torch.manual_seed(0)
    ids = torch.randint(4, 16, (8, 40))
    ids[:2, 0], ids[2, 7] = 3, 3
    torch.manual_seed(0)
    return Massive().eval(), Language(Words(), 40), [{"input_ids": ids}]


def test_sites_and_tokens_are_named(setting):
    model, task, batches = setting
    thresholds = onespike.calibrate(model, batches)
    found = outliers(onespike.convert(model, thresholds), batches, task)
    assert list(found) == ["second:linear0_input"]
    row = found["second:linear0_input"]
    assert (row["carrying"], row["first"], row["rows"]) == (3, 2, 320)
    assert row["named"] == {"'w3', the first": 2, "'w3'": 1}
    assert row["largest"] == pytest.approx(thresholds["second:linear0_input"].largest)

    measured = SimpleNamespace(outliers=found, commands={"outliers": "onespike convert it"})
    (finding,) = _outliers(measured)
    assert "1 sites receive values beyond" in finding.title
    assert "3 of 320 rows carry such values" in finding.evidence
    assert "67 % of them are the first token: 'w3', the first (2 times)" in finding.evidence


def test_steps_by_token_reach_them(setting):
    model, task, batches = setting
    recipe = onespike.Recipe(passes=("nearest", "layout", "tokens"))
    assert not outliers(onespike.spike(model, batches, recipe, task=task), batches, task)
