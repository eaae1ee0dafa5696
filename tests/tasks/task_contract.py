"""What every task must keep. A task's tests inherit `TaskContract` and say how its outputs are made."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from onespike.tasks import TASKS, Items, Task, task_of
from onespike.tasks.base import exact


def number(x: Tensor) -> float:
    return float(x.detach())


class TaskContract:
    """The contract, one task a subclass."""

    task: Task
    inputs = 6

    def items(self) -> Items:
        """Inputs with what they are scored by."""
        raise NotImplementedError

    def output(self, seed: int, noise: float = 0.0) -> Any:
        """A network's output for all inputs, whose tensors have gradients; noise makes another network's."""
        raise NotImplementedError

    def part(self, output: Any, chosen: slice) -> Any:
        raise NotImplementedError

    def leaves(self, output: Any) -> list[Tensor]:
        """The tensors from which the output was computed."""
        raise NotImplementedError

    def labels(self) -> Tensor:
        return torch.tensor([item.label for item in self.items()][: self.inputs])

    def scored(self) -> dict[str, Any]:
        """An evaluation as it is stored: by its JSON alone, without the network."""
        metric = self.task.metric(self.items())
        metric.update(self.output(0), self.output(0, 0.5), self.labels())
        return json.loads(json.dumps({**metric.compute(), "images": self.inputs}))

    def test_it_is_registered_under_its_name(self):
        assert TASKS[self.task.name] is type(self.task)

    def test_an_output_does_not_diverge_from_itself(self):
        same = self.task.divergence(exact(self.output(0)), exact(self.output(0)))
        assert abs(number(same)) < 1e-6
        assert not self.task.differences(self.output(0), self.output(0)).any()

    def test_divergence_grows_with_the_noise(self):
        found = [number(self.task.divergence(self.output(0), self.output(0, n))) for n in (0.01, 0.1, 0.5)]
        assert 0 < found[0] < found[1] < found[2]

    def test_divergence_is_a_sum_over_inputs_and_has_a_gradient(self):
        expected, actual = self.output(0), self.output(0, 0.1)
        whole = self.task.divergence(expected, actual)
        parts = [
            self.task.divergence(self.part(expected, rows), self.part(actual, rows))
            for rows in (slice(0, 2), slice(2, None))
        ]
        assert number(whole) == pytest.approx(number(sum(parts)), rel=1e-4)
        whole.backward()
        assert any(bool(leaf.grad.abs().sum() > 0) for leaf in self.leaves(actual))

    def test_the_mean_gradient_of_draws_is_zero_and_parts_share_a_draw(self):
        """E[∇ log p] = 0 for a draw from p itself; parts of a batch draw as the whole batch does."""
        totals = [(torch.zeros_like(leaf), torch.zeros_like(leaf)) for leaf in self.leaves(self.output(0))]
        for seed in range(200):
            output = self.output(0)
            drawing = self.task.drawing(self.inputs, torch.Generator().manual_seed(seed))
            drawing(output, torch.arange(self.inputs)).backward()
            for (gradients, squares), leaf in zip(totals, self.leaves(output), strict=True):
                gradients += leaf.grad
                squares += leaf.grad.square()
        mean = sum(float((gradients / 200).square().sum()) for gradients, _ in totals) ** 0.5
        size = sum(float((squares / 200).sum()) for _, squares in totals) ** 0.5
        assert mean < 3 * size / 200**0.5
        values = []
        for rows in ([slice(0, None)], [slice(0, 4), slice(4, None)]):
            drawing, output = self.task.drawing(self.inputs, torch.Generator().manual_seed(7)), self.output(0)
            places = torch.arange(self.inputs)
            values.append(sum(number(drawing(self.part(output, r), places[r])) for r in rows))
        assert values[0] == pytest.approx(values[1], rel=1e-4)

    def test_metrics_of_two_parts_are_those_of_the_whole(self):
        ann, snn, labels = self.output(0), self.output(0, 0.5), self.labels()
        first, second = (self.task.metric(self.items()) for _ in range(2))
        for metric, rows in ((first, slice(0, 2)), (second, slice(2, None))):
            metric.update(self.part(ann, rows), self.part(snn, rows), labels[rows])
        first = copy.deepcopy(first)  # as it comes from another process
        first.merge(second)
        together = json.loads(json.dumps({**first.compute(), "images": self.inputs}))
        assert _close(together, self.scored())

    def test_figures_lie_within_their_intervals(self):
        record = self.scored()
        bounds = {name: record["intervals"][name] for name in record["intervals"] if "." not in name}
        assert bounds, "some figure has an interval"
        for name, (low, high) in bounds.items():
            assert low <= record[name] <= high, name
        headline = self.task.headline(record)
        for bounds in (headline.bounds, headline.compared):
            assert bounds is None or bounds[0] <= headline.spiking <= bounds[1]
        if headline.paired is not None:
            assert headline.paired[0] <= headline.difference <= headline.paired[1]

    def test_every_objective_has_a_score(self):
        for name, objective in self.task.objectives.items():
            score = objective.score(self.items())
            expected = self.output(0) if not objective.labeled else None
            labels = self.labels() if objective.labeled else None
            score.update(expected, self.output(0), labels, self.inputs)
            assert isinstance(score.value(), float), name
        assert not self.task.objectives["kl"].maximize and not self.task.objectives["kl"].labeled
        assert self.task.objective(self.items()) in self.task.objectives

    def test_a_stored_evaluation_shows_itself(self):
        stored = self.scored()
        task, plain = task_of(stored), task_of(stored).summary(stored, 50.0)
        assert task is type(self.task)
        assert len(plain.networks) == len(plain.table.texts()) and plain.note
        assert all(len(row) == len(plain.table.headers) for row in plain.table.texts())
        assert task.columns(stored)
        headline = task.headline(stored)
        assert headline.figures and headline.spiking is not None and headline.original is not None
        assert headline.difference == pytest.approx(headline.spiking - headline.original)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_close, a, b))
    return a == (pytest.approx(b) if isinstance(b, float) else b)
