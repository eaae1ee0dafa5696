"""Pass `tune`: steps, centers and offsets learned end to end from the original network's outputs, without labels."""

import hashlib
import math
import time
from copy import deepcopy
from io import BytesIO
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike.calibration.thresholds import SiteThreshold
from onespike.energy.columns import additions_within, reading_of
from onespike.neurons.base import straight_through
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.budget import fit, least
from onespike.passes.statistics import held_out, probed, unspiked
from onespike.runtime.atomic import write_atomically
from onespike.runtime.batches import call, count, join, take, to
from onespike.runtime.forward import device_of
from onespike.runtime.progress import progress
from onespike.runtime.validated import understood
from onespike.sites import Operand
from onespike.spikes import SpikeCode, fire_function, row_gain

STEPS, BATCH, RATE, EVERY, PATIENCE, AVERAGE = 200, 8, 0.001, 20, 5, 0.95
SECONDS = 25 * 60  # a tuning that takes longer than this ends with its best so far
HOPELESS = 2  # judgments without any gain over the start after which a tuning is given up
HINGE = 3.0
FILE, DIGEST = "tune.pt", 32
"""Where an interrupted tuning is continued from: the SHA-256 of what torch saves, and that."""
RESUMED = ("identity", "average", "best", "best_loss", "step", "waited", "seconds")
ONE = torch.ones(())


class LearnedSite(nn.Module):
    """One site while it learns: how far its constants have moved, in units in which one learning rate suits all."""

    def __init__(self, t: SiteThreshold, state: PassState, column: str) -> None:
        super().__init__()
        step, center = state.step(t.site), torch.zeros(()) if t.center is None else t.center
        offset = center if t.offset is None else t.offset
        self.start = step.clamp(min=1e-12).log(), center, offset
        function = fire_function(t.levels, t.rounding or state.recipe.rounding)
        self.code = SpikeCode(ONE, ONE if bool((t.negative > 0).any()) else None, function)
        self.reading, self.drives, self.typical = reading_of(column), state.drives(t.site), t.typical
        self.fan_out, self.gain, centered = 0.0, ONE if t.gain is None else t.gain, t.center is not None
        self.step = nn.Parameter(torch.zeros_like(step))
        self.center, self.offset = (nn.Parameter(torch.zeros_like(x), centered) for x in (center, offset))

    def constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log step, center and offset; the latter move in units of the mean first step."""
        log_step, center, offset = self.start
        unit = log_step.exp().median()
        return log_step + self.step, center + unit * self.center, offset + unit * self.offset

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """offset + gain·step·G((x − center)/gain), straight through to x; so a step learns from the rounding error (LSQ).

        The second result is the cost Σ fan-out·additions, whose gradient with respect to log step is its elasticity.
        """
        (log_step, center, offset), gain = self.constants(), self.gain
        if self.typical is not None:
            gain = gain * row_gain((x - center).detach(), self.typical)
        unit = gain * log_step.exp()
        a = (x - center) / unit
        with torch.no_grad():
            y = self.code.fire(a)
            additions = (self.reading.additions(y.abs()) * self.drives).sum_to_size(log_step.shape)
            inside = self.code.in_range(a)
        cost = additions * (self.reading.elasticity * (log_step.detach() - log_step)).exp()
        return straight_through(y, a, inside) * unit + offset, cost.sum() * self.fan_out


@calibration_pass("tune", stage="learning", needs=("allocate",), whole=True, steps=True)
def tune(state: PassState, context: PassContext) -> PassState:
    """Run Adam on log-steps, centers and offsets; loss = KL(original ‖ spiking) + 3·max(0, energy/budget − 1).

    The best average of the path, or the start, on inputs that no step has seen is taken, and then meets the budget.
    """
    goal = least(state, context)
    return fit(Training(state, context, goal).run(), context, goal)


class Training:
    """One tuning: its learned constants, their average, and the best average so far."""

    def __init__(self, state: PassState, context: PassContext, goal: float) -> None:
        self.state, self.context = state, context
        self.sites = {site: LearnedSite(t, state, context.energy) for site, t in state.spiking.items()}
        self.learner = nn.ModuleList(self.sites.values())
        self.network, self.costs = unspiked(state, context), list[Tensor]()
        self.allowed = additions_within(context.energy, goal, state.thresholds.macs)
        self.optimizer = torch.optim.Adam(self.learner.parameters(), RATE, betas=(0.9, 0.99))
        self.average, self.best = (deepcopy(self.learner.state_dict()) for _ in range(2))
        self.best_loss, self.step, self.waited, self.seconds = math.inf, 0, 0, 0.0
        self.free, self.held = held_out("tune", context)
        self.file = None if context.folder is None else context.folder / FILE
        # what a resumed tuning must share with the one it continues
        self.identity = torch.stack([site.start[0].double().sum() for site in self.sites.values()])

    @torch.no_grad()
    def learned(self) -> PassState:
        """Return the state with the present constants."""
        changes = {}
        for site, t in self.state.spiking.items():
            log_step, center, offset = self.sites[site].constants()
            step = log_step.exp() / self.state.scale(site)
            sides = {"positive": t.positive, "negative": t.negative}
            changes[site] = {side: (step * (old > 0)).float() for side, old in sides.items()}
            if t.center is not None:
                changes[site] |= {"center": center.float(), "offset": offset.float()}
        return self.state.with_sites(changes)

    def _visit(self, operand: Operand, x: Tensor, padding: Tensor | None) -> Tensor:
        site = self.sites[operand.site]
        site.fan_out = operand.synapses.mean_fan_out
        value, cost = site.forward(x)
        self.costs.append(cost)
        return value

    def _loss(self, batch: Any) -> Tensor:
        batch, size = to(batch, device_of(self.network)), count(batch)
        with torch.no_grad():
            expected = call(self.context.model, batch)
        with probed(self.network, batch, self._visit) as output:
            divergence: Tensor = self.context.task.divergence(expected, output) / size
        share = sum(self.costs, torch.zeros(())) / size / self.allowed
        self.costs.clear()
        return divergence + HINGE * F.relu(share - 1)

    @torch.no_grad()
    def _judge(self) -> float:
        """Return the loss of the averaged constants on inputs that no step has seen."""
        now = deepcopy(self.learner.state_dict())
        self.learner.load_state_dict(self.average)
        losses = [float(self._loss(self.context.inputs[i])) for i in self.held]
        self.learner.load_state_dict(now)
        return sum(losses) / len(losses)

    def run(self) -> PassState:
        """Take steps until the held-out loss has not improved for a while, or time is up; return the best average."""
        self._resume()
        if not self.step:
            self.best_loss = self._judge()
        training = self.context.model.training
        self.context.model.eval()
        for _ in progress("tuning", STEPS)(range(self.step, STEPS)):
            gained = any(bool(value.any()) for value in self.best.values())
            if self.waited >= (PATIENCE if gained else HOPELESS) or self.seconds > SECONDS:
                continue
            started = time.perf_counter()
            self._step()
            if self.step % EVERY == 0:
                loss = self._judge()
                self.waited += 1
                if loss < self.best_loss:
                    self.best, self.best_loss, self.waited = deepcopy(self.average), loss, 0
                self._save()
            self.seconds += time.perf_counter() - started
        self.context.model.train(training)
        self.learner.load_state_dict(self.best)
        return self.learned()

    def _step(self) -> None:
        generator = torch.Generator().manual_seed(self.context.seed * 100003 + self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * self.step / STEPS))
        with torch.enable_grad():
            loss = self._loss(self._batch(generator))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        for name, value in self.learner.state_dict().items():
            self.average[name].lerp_(value, 1 - min(AVERAGE, self.step / (self.step + 10)))

    def _batch(self, generator: torch.Generator) -> Any:
        """Return some inputs to learn from, images mirrored half of the time."""
        inputs, size = self.context.inputs, self.context.portion(BATCH)
        parts = torch.randperm(len(self.free), generator=generator)[: -(-2 * size // count(inputs[0]))]
        batch = join([inputs[self.free[int(part)]] for part in parts])
        batch = take(batch, torch.randperm(count(batch), generator=generator)[:size])
        mirrors = isinstance(batch, Tensor) and batch.dim() == 4
        return batch.flip(-1) if mirrors and bool(torch.rand((), generator=generator) < 0.5) else batch

    def _save(self) -> None:
        if self.file is None:
            return
        record = {name: vars(self)[name] for name in RESUMED}
        record |= {"learner": self.learner.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(record, contents := BytesIO())
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, hashlib.sha256(contents.getvalue()).digest() + contents.getvalue())

    def _resume(self) -> None:
        if self.file is None or not self.file.is_file():
            return
        with understood(self.file, "Remove it to begin the tuning anew."):
            data = self.file.read_bytes()
            if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
                raise ValueError("its SHA-256 differs")
            record = torch.load(BytesIO(data[DIGEST:]), weights_only=True)
            if torch.equal(record["identity"], self.identity):
                self.learner.load_state_dict(record.pop("learner"))
                self.optimizer.load_state_dict(record.pop("optimizer"))
                vars(self).update(record)
