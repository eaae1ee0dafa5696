"""All tasks keep the contract of tasks; outputs of which nothing is known keep that of meanings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from task_contract import TaskContract, number

from language_folders import tokenizer
from onespike.adapters.detection import listed
from onespike.adapters.transformers import Tokens
from onespike.errors import DataError, UsageError
from onespike.tasks import (
    Classification,
    Detection,
    Embedding,
    Inferred,
    Item,
    Items,
    Language,
    Numbers,
    infer,
    limit,
    list_coco,
    list_images,
)
from onespike.tasks.base import task
from onespike.tasks.embedding import Text, spearman
from onespike.tasks.objects import drawn, unlike


class OneTensor(TaskContract):
    """Outputs that are one tensor: (inputs, …)."""

    shape: tuple[int, ...]

    def output(self, seed, noise=0.0):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(self.inputs, *self.shape, generator=generator)
        return (scores + noise * torch.randn(scores.shape, generator=generator)).requires_grad_()

    def part(self, output, chosen):
        return output[chosen]

    def leaves(self, output):
        return [output]


class TestClassification(OneTensor):
    task, shape = Classification(), (10,)

    def items(self):
        return limit(list_images("bundled:cifar10-test"), self.inputs)


def _objects(output):
    return [{"scores": s.sigmoid(), "labels": c, "boxes": b, "masks": m.sigmoid()} for s, c, b, m in output]


def _results(output, images):
    whole = ({**o, "masks": torch.kron(o["masks"], torch.ones(1, 8, 8))[:, None]} for o in _objects(output))
    return listed(({name: x.detach() for name, x in o.items()} for o in whole), images)


class TestDetection(TaskContract):
    task = Detection(_results, _objects, masks=True)

    @staticmethod
    @cache
    def items():
        return limit(list_coco("bundled:scenes-test")[0], TestDetection.inputs)

    def output(self, seed, noise=0.0):
        """An object for each of the truth."""
        generator, rows = torch.Generator().manual_seed(seed), []
        for item in self.items():
            truth = [a for a in self.items().truth.record["annotations"] if a["image_id"] == item.id]
            count = len(truth)
            corners = torch.tensor(
                [[x, y, x + w, y + h] for x, y, w, h in (a["bbox"] for a in truth)]
            ).float()
            labels = torch.tensor([a["category_id"] for a in truth])
            scores = torch.randn(count, generator=generator) + 1
            masks = torch.randn(count, 8, 8, generator=generator)
            shaken = []
            for x, scale in ((scores, 1.0), (corners, 2.0), (masks, 1.0)):
                shake = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
                shaken.append((x + noise * scale * shake).requires_grad_())
            rows.append((shaken[0], labels, *shaken[1:]))
        return rows

    def part(self, output, chosen):
        return output[chosen]

    def leaves(self, output):
        return [x for row in output for x in row if x.requires_grad]

    def test_information_of_a_score_a_box_and_a_mask_by_hand(self):
        """s(1 − s) for a score's logit; s/(0.1·size)² for a side; s·p(1 − p)/area for a pixel's logit."""
        leaves = [
            torch.full((2000,), 0.5),
            torch.tensor([[0.0, 0, 20, 40]]).repeat(2000, 1),
            torch.zeros(2000, 4, 4),
        ]
        score, boxes, masks = (x.requires_grad_() for x in leaves)
        objects = {"scores": score.sigmoid(), "boxes": boxes, "masks": masks.sigmoid()}
        drawn(objects, torch.Generator().manual_seed(0)).backward()
        information = [x.grad.square().mean(0) for x in leaves]
        s = number(score[0].sigmoid())
        assert float(information[0]) == pytest.approx(s * (1 - s), rel=0.1)
        sides = torch.tensor([2.0, 4.0, 2.0, 4.0])
        assert torch.allclose(information[1], s / sides.square(), rtol=0.15)
        assert float(information[2].mean()) == pytest.approx(s * 0.25 / 8, rel=0.1)

    def test_an_object_that_is_lost_costs_as_much_as_its_score(self):
        def found(scores):
            places = torch.tensor([[0.0, 0.0, 9.0, 9.0], [20.0, 20.0, 30.0, 30.0]])[: len(scores)]
            return {"scores": torch.tensor(scores), "labels": torch.zeros(len(scores)), "boxes": places}

        none = {k: v[:0] for k, v in found([0.5]).items()}
        assert float(unlike(found([0.9, 0.8]), found([0.9]))) == pytest.approx(5.03, abs=0.01)
        assert float(unlike(found([0.9]), found([0.9, 0.8]))) == pytest.approx(1.60, abs=0.01)
        assert float(unlike(none, none)) == 0.0

    def test_without_annotations_it_asks_for_them(self):
        plain = list_images("bundled:cifar10-test")
        assert self.task.objective(plain) == "kl"
        with pytest.raises(DataError, match=r"boxes are scored with annotations. Give annotations=FILE"):
            self.task.metric(plain)


class TestLanguage(OneTensor):
    task, shape = Language(Tokens(tokenizer()), 5), (5, 32)

    def items(self):
        ids = torch.randint(32, (self.inputs, 5), generator=torch.Generator().manual_seed(1))
        return Items("text", tuple(Item(f"w{i}", i, Path("t"), i, None, row) for i, row in enumerate(ids)))

    def test_every_position_is_drawn_by_itself(self):
        """The Fisher information of a logit is p(1 − p) at its own position."""
        scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        leaf = scores.repeat(3000, 1, 1).requires_grad_()
        self.task.drawing(3000, torch.Generator().manual_seed(0))(leaf, torch.arange(3000)).backward()
        p = scores.softmax(-1)
        assert torch.allclose(leaf.grad.square().mean(0), p * (1 - p), atol=0.03)

    def test_divergence_is_a_mean_over_positions(self):
        a, b = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
        longer = self.task.divergence(a.repeat(1, 3, 1), b.repeat(1, 3, 1))
        assert torch.allclose(self.task.divergence(a, b), longer)


class TestEmbedding(OneTensor):
    task, shape = Embedding(), (16,)

    def items(self):
        rows = [Text(f"text {i}", i % 3, float(i % 3)) for i in range(self.inputs)]
        return Items("texts", tuple(Item(f"t{i}", i, Path("t"), i, None, row) for i, row in enumerate(rows)))

    def test_divergence_is_one_minus_the_cosine(self):
        a, b = self.output(0), self.output(0, 0.5)
        cosine = torch.nn.functional.cosine_similarity(a, b).sum()
        assert number(self.task.divergence(a, b)) == pytest.approx(self.inputs - number(cosine), rel=1e-4)

    def test_spearman_is_scipys(self):
        from scipy.stats import spearmanr

        a, b = torch.randint(5, (30,)).double(), torch.randn(30).double()
        assert spearman(a, b) == pytest.approx(float(spearmanr(a, b).statistic))
        assert spearman(torch.ones(4), torch.arange(4.0)) is None


@pytest.mark.parametrize("shape", [(6, 1), (6, 3, 4, 4), (6, 5, 7)])
def test_any_output_is_numbers_with_noise(shape):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    b = (a + 0.1 * torch.randn(shape)).requires_grad_()
    assert isinstance(infer(a), Numbers)
    meaning = Inferred()
    found = meaning.divergence({"depth": a}, {"depth": b})
    spread = (a - a.mean()).square().mean()
    expected = 0.5 * 6 * ((a - b.detach()) ** 2).mean() / spread
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-4)
    drawing = meaning.drawing(6, torch.Generator().manual_seed(0))
    drawing({"depth": b}, torch.arange(6)).backward()
    assert bool(b.grad.abs().sum() > 0)
    assert not meaning.differences(a, a).any()


def test_an_output_without_numbers_is_named():
    with pytest.raises(DataError, match="of type str, holds no numbers"):
        Inferred().divergence("yes", "no")


def test_a_second_task_of_one_name_is_refused():
    with pytest.raises(UsageError, match="'classification' is registered already"):
        task(Classification)
