"""Pass `tune`: steps, centers and offsets learned end to end from the original network's outputs, without labels."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike.calibration.thresholds import SiteThreshold
from onespike.energy.columns import Reading, additions_within, reading_of
from onespike.errors import UsageError
from onespike.neurons.gradient import in_range, straight_through
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.budget import fit, least
from onespike.passes.statistics import held_out, probing, unspiked
from onespike.runtime.atomic import write_atomically
from onespike.runtime.batches import call, join, take, to
from onespike.runtime.batches import count as count_of
from onespike.runtime.forward import device_of
from onespike.runtime.validated import understood
from onespike.sites import Operand, Site
from onespike.spikes import SpikeCode, fire_function, row_gain

STEPS, BATCH, RATE, EVERY, PATIENCE, AVERAGE = 200, 8, 0.001, 20, 5, 0.95
SECONDS = 25 * 60
"""A tuning that takes longer than this ends with the best it has found."""
HOPELESS = 2
"""Judgments without any gain over the start after which a tuning is given up."""
HINGE = 3.0
FILE = "tune.safetensors"
ONE = torch.ones(())


def fired(
    x: Tensor, log_step: Tensor, center: Tensor, offset: Tensor, gain: Tensor, site: Learned
) -> tuple[Tensor, Tensor]:
    """offset + gain·step·G((x − center)/gain), straight through to x; so a step learns from the rounding error (LSQ).

    The second result is the cost Σ fan-out·additions, whose gradient with respect to log step is its elasticity.
    """
    unit = gain * log_step.exp()
    a = (x - center) / unit
    with torch.no_grad():
        y = site.code.fire(a)
        additions = (site.reading.additions(y.abs()) * site.drives).sum_to_size(log_step.shape)
        inside = in_range(a, *site.code.units(), site.code.largest)
    cost = additions * (site.reading.elasticity * (log_step.detach() - log_step)).exp()
    return straight_through(y, a, inside) * unit + offset, cost.sum() * site.fan_out


@dataclass
class Learned:
    """What stays fixed at one site while it learns: what it fires of x in units of the step, and what that costs."""

    code: SpikeCode
    reading: Reading
    drives: bool
    fan_out: float = 0.0
    typical: Tensor | None = None


class Learner(nn.Module):
    """The learnable constants of all sites, in units in which one learning rate suits all."""

    def __init__(self, state: PassState, column: str) -> None:
        super().__init__()
        self.keys = {site: f"s{i}" for i, site in enumerate(state.spiking)}
        self.fixed: dict[Site, Learned] = {}
        self.starts: dict[Site, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self.moves = nn.ParameterDict()
        for site, t in state.spiking.items():
            step = (t.positive if bool((t.positive > 0).any()) else t.negative) * state.scale(site)
            zero = torch.zeros(())
            center = zero if t.center is None else t.center
            offset = center if t.offset is None else t.offset
            gain = torch.ones(()) if t.gain is None else t.gain
            self.starts[site] = (step.clamp(min=1e-12).log(), center, offset, gain)
            function = fire_function(t.levels, t.rounding or state.recipe.rounding)
            code = SpikeCode(ONE, ONE if bool((t.negative > 0).any()) else None, function)
            self.fixed[site] = Learned(code, reading_of(column), state.drives(site), typical=t.typical)
            key = self.keys[site]
            self.moves[f"{key}_step"] = torch.zeros_like(step)
            if t.center is not None:
                self.moves[f"{key}_center"] = torch.zeros_like(center)
                self.moves[f"{key}_offset"] = torch.zeros_like(offset)

    def constants(self, site: Site) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the present log step, center, offset and gain; constants move in units of the mean first step."""
        log_step, center, offset, gain = self.starts[site]
        key = self.keys[site]
        if f"{key}_center" in self.moves:
            unit = log_step.exp().median()
            center = center + unit * self.moves[f"{key}_center"]
            offset = offset + unit * self.moves[f"{key}_offset"]
        return log_step + self.moves[f"{key}_step"], center, offset, gain

    def state(self, state: PassState) -> PassState:
        """Return the thresholds with what was learned."""
        changes = {}
        for site, t in state.spiking.items():
            with torch.no_grad():
                log_step, center, offset, _ = self.constants(site)
                step = log_step.exp() / state.scale(site)
            change: dict[str, Any] = {
                side: (step * (old > 0)).float()
                for side, old in (("positive", t.positive), ("negative", t.negative))
            }
            if t.center is not None:
                change |= {"center": center.detach().float(), "offset": offset.detach().float()}
            changes[site] = change
        return state.with_sites(changes)


def check_symmetric(t: SiteThreshold) -> None:
    """Refuse different steps for the two signs: tuning learns one step."""
    if bool((t.negative > 0).any()) and not torch.equal(t.positive, t.negative):
        raise UsageError(
            f"the pass 'tune' learns one step for both signs, and {t.site} has two. Add the pass 'allocate'."
        )


@calibration_pass("tune", needs=("allocate",), whole=True, steps=True)
def tune(state: PassState, given: PassContext) -> PassState:
    """Run Adam on log-steps, centers and offsets; loss = KL(original ‖ spiking) + 3·max(0, energy/budget − 1).

    The average of the path is judged on inputs that no step has seen, and so is the start; the best is kept and then
    meets the budget exactly.
    """
    for t in state.spiking.values():
        check_symmetric(t)
    goal = least(state, given)
    learner = Learner(state, given.energy)
    training = Training(learner, state, given, goal)
    training.run()
    return fit(training.best_state(), given, goal)


class Training:
    """One tuning: its learned constants, their average, and the best average so far."""

    def __init__(self, learner: Learner, state: PassState, given: PassContext, goal: float) -> None:
        self.learner, self.state, self.given = learner, state, given
        self.network, self.spent = unspiked(state, given), list[Tensor]()
        self.teacher = given.model
        self.allowed = additions_within(given.energy, goal, state.thresholds.macs)
        self.optimizer = torch.optim.Adam(learner.parameters(), RATE, betas=(0.9, 0.99))
        self.average = {k: v.detach().clone() for k, v in learner.moves.items()}
        self.best, self.best_loss, self.step, self.waited, self.seconds = (
            {k: v.clone() for k, v in self.average.items()},
            math.inf,
            0,
            0,
            0.0,
        )
        self.free, self.held = held_out("tune", given)

    def _visit(self, site: Site, x: Tensor, operand: Operand) -> Tensor:
        fixed = self.learner.fixed[site]
        fixed.fan_out = operand.synapses.mean_fan_out
        log_step, center, offset, gain = self.learner.constants(site)
        if fixed.typical is not None:
            gain = gain * row_gain((x - center).detach(), fixed.typical)
        value, cost = fired(x, log_step, center, offset, gain, fixed)
        self.spent.append(cost)
        return value

    def _loss(self, batch: Any) -> tuple[Tensor, float, float]:
        batch, size = to(batch, device_of(self.network)), count_of(batch)
        with torch.no_grad():
            expected = call(self.teacher, batch)
        self.spent.clear()
        with probing(self.network, self._visit):
            output = call(self.network, batch)
        divergence = self.given.task.divergence(expected, output) / size
        share = sum(self.spent, torch.zeros(())) / size / self.allowed
        self.spent.clear()
        return divergence + HINGE * F.relu(share - 1), float(divergence.detach()), float(share.detach())

    def _judge(self) -> float:
        """Return the loss of the averaged constants on inputs that no step has seen."""
        now = {k: v.detach().clone() for k, v in self.learner.moves.items()}
        self._put(self.average)
        with torch.no_grad():
            losses = [float(self._loss(self.given.inputs[i])[0]) for i in self.held]
        self._put(now)
        return sum(losses) / len(losses)

    def _put(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.learner.moves[name].copy_(value)

    def run(self) -> None:
        """Take steps until the held-out loss has not improved for a while, or time is up; resume where it stopped."""
        self._resume()
        if not self.step:
            self.best_loss = self._judge()
        training = self.teacher.training
        self.teacher.eval()
        for _ in self.given.progress("tuning", STEPS)(range(self.step, STEPS)):
            if self.waited >= (PATIENCE if self.gained else HOPELESS) or self.seconds > SECONDS:
                continue
            started = time.perf_counter()
            self._step()
            if self.step % EVERY == 0:
                loss = self._judge()
                self.waited = self.waited + 1
                if loss < self.best_loss:
                    self.best, self.best_loss, self.waited = (
                        {k: v.clone() for k, v in self.average.items()},
                        loss,
                        0,
                    )
                self._keep()
            self.seconds += time.perf_counter() - started
        self.teacher.train(training)

    @property
    def gained(self) -> bool:
        """Return whether something better than the start was found."""
        return any(bool(value.any()) for value in self.best.values())

    def _step(self) -> None:
        generator = torch.Generator().manual_seed(self.given.seed * 100003 + self.step)
        inputs, size = self.given.inputs, self.given.portion(BATCH)
        parts = torch.randperm(len(self.free), generator=generator)[: -(-2 * size // count_of(inputs[0]))]
        batch = join([inputs[self.free[int(part)]] for part in parts])
        batch = take(batch, torch.randperm(count_of(batch), generator=generator)[:size])
        if isinstance(batch, Tensor) and batch.dim() == 4:
            batch = batch.flip(-1) if bool(torch.rand((), generator=generator) < 0.5) else batch
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * self.step / STEPS))
        with torch.enable_grad():
            loss, _, _ = self._loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        for name, value in self.learner.moves.items():
            self.average[name].lerp_(value.detach(), 1 - min(AVERAGE, self.step / (self.step + 10)))

    def best_state(self) -> PassState:
        """Return the thresholds of the best average."""
        self._put(self.best)
        return self.learner.state(self.state)

    def _file(self) -> Path | None:
        return None if self.given.folder is None else self.given.folder / FILE

    def _keep(self) -> None:
        file = self._file()
        if file is None:
            return
        from safetensors.torch import save

        tensors = {f"now/{k}": v.detach().clone() for k, v in self.learner.moves.items()}
        tensors |= {f"average/{k}": v.clone() for k, v in self.average.items()}
        tensors |= {f"best/{k}": v.clone() for k, v in self.best.items()}
        for name, value in self.learner.moves.items():
            for moment, tensor in self.optimizer.state[value].items():
                tensors[f"{moment}/{name}"] = torch.as_tensor(tensor).clone()
        facts = torch.tensor([self.step, self.waited, self.best_loss, self.seconds], dtype=torch.float64)
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors |= {"facts": facts, "identity": self._identity()}
        write_atomically(file, save(tensors, {"sha256": _digest(tensors)}))

    def _identity(self) -> Tensor:
        """Return what a resumed tuning must share with the one it continues: its start."""
        return torch.stack([start[0].double().sum() for start in self.learner.starts.values()])

    def _resume(self) -> None:
        file = self._file()
        if file is None or not file.is_file():
            return
        with understood(file, "Remove it to begin the tuning anew."):
            self._continue(_read(file))

    def _continue(self, tensors: dict[str, Tensor]) -> None:
        if not torch.equal(tensors["identity"], self._identity()):
            return
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            parts.setdefault(part, {})[key] = tensor
        self._put(parts["now"])
        self.average, self.best = parts["average"], parts["best"]
        for name, value in self.learner.moves.items():
            moments = {
                m: parts[m][name] for m in ("step", "exp_avg", "exp_avg_sq") if name in parts.get(m, {})
            }
            if moments:
                self.optimizer.state[value] = moments
        step, waited, self.best_loss, self.seconds = tensors["facts"].tolist()
        self.step, self.waited = int(step), int(waited)


def _digest(tensors: dict[str, Tensor]) -> str:
    from safetensors.torch import save

    return hashlib.sha256(save(tensors)).hexdigest()


def _read(file: Path) -> dict[str, Tensor]:
    """Return the tensors that a tuning has kept; damage is an error."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(file, framework="pt") as opened:
            known = (opened.metadata() or {}).get("sha256")
        tensors: dict[str, Tensor] = load_file(file)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if known != _digest(tensors):
        raise ValueError("its SHA-256 differs")
    return tensors
