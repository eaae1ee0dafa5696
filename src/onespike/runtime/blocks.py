"""A network whose weights stay on disk, and come into memory one block at a time.

Blocks are what repeats in the network: the members of its outermost lists in which two are built alike. What else is
large (an embedding, an output layer) comes and goes by itself, and the rest stays in memory. Hooks load the weights
before a forward and drop them behind it, so that every forward works; `lockstep` takes many batches through the
network with one reading of the weights.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.errors import UsageError
from onespike.runtime.memory import available, in_words
from onespike.runtime.stored import Stored, write

SMALL = 1 / 16
"""What is smaller than this part of the largest block stays in memory."""
SHARE = 3 / 4
"""The part of the free memory that weights and activations between blocks may take; a block's own work needs the rest."""
PLACE, HELD = "_in_blocks", "_held_for_blocks"
"""Where a network keeps its `Blocks`, and a module whose weights are there what stood in their place."""


class Unit:
    """Weights that come and go together: those of one module, and of its copy in a converted network."""

    def __init__(
        self,
        name: str,
        weights: Mapping[str, tuple[Stored, torch.dtype]],
        repeats: bool,
        device: torch.device,
    ) -> None:
        self.name, self.weights, self.repeats, self.device = name, weights, repeats, device
        self.size = sum(
            stored.size // stored.dtype.itemsize * kind.itemsize for stored, kind in weights.values()
        )

    def __deepcopy__(self, memo: Any) -> Unit:
        return self  # a copy of the network has the same weights

    def load(self, modules: list[nn.Module]) -> None:
        """Read the weights once, for these modules."""
        missing = [module for module in modules if HELD not in module.__dict__]
        for module in missing:
            module.__dict__[HELD] = []
        for path, (stored, kind) in self.weights.items() if missing else ():
            whole = stored.read().to(self.device, kind)
            for module in missing:
                owner, name = _owner(module, path)
                module.__dict__[HELD].append((owner, name, getattr(owner, name)))
                setattr(owner, name, nn.Parameter(whole, requires_grad=False))

    def free(self, modules: list[nn.Module]) -> None:
        """Drop the weights."""
        for module in modules:
            for owner, name, placeholder in module.__dict__.pop(HELD, ()):
                setattr(owner, name, placeholder)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Hook: the weights are there when the forward begins."""
        from onespike.runtime.lockstep import arrive

        if not arrive(self, module, args, kwargs):
            self.load([module])

    def behind(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Hook: the forward has ended, or failed."""
        from onespike.runtime.lockstep import leave

        inside, output = leave(self, module, output)
        if not inside:
            self.free([module])
        return output


@dataclass(frozen=True)
class Estimate:
    """What a network in blocks takes in memory, in bytes.

    Attributes:
        weights: all of them.
        resident: those that stay.
        largest: those of the largest block.
        name: of the largest block.
        units: how often something is loaded in one forward.
        carried: what one batch carries from block to block; 0 before one was seen.
        available: what there is; None where nobody knows.
        at_once: how many batches go through the network together.
    """

    weights: int
    resident: int
    largest: int
    name: str
    units: int
    carried: int
    available: int | None
    at_once: int

    def __str__(self) -> str:
        there = "unknown" if self.available is None else in_words(self.available)
        return (
            f"weights {in_words(self.weights)} in {self.units} parts; in memory {in_words(self.resident)} always, "
            f"{in_words(self.largest)} for {self.name}, {in_words(self.carried)} carried per batch; "
            f"available {there}: {self.at_once} batches at once"
        )


class Blocks:
    """How a network lies on disk: its units, what stays in memory, and how much of that there is."""

    def __init__(
        self,
        units: list[Unit],
        resident: int,
        device: torch.device,
        memory: int | None,
        names: dict[str, Stored],
    ) -> None:
        self.units, self.resident, self.device, self.memory, self.names = (
            units,
            resident,
            device,
            memory,
            names,
        )

    def __deepcopy__(self, memo: Any) -> Blocks:
        return self

    @property
    def largest(self) -> Unit:
        return max(self.units, key=lambda unit: unit.size)

    def estimate(self, carried: int = 0, most: int = 1) -> Estimate:
        """What it takes, where a batch carries this much; refused where one batch does not fit."""
        free = available(self.device) if self.memory is None else None
        there = None if free is None else int(SHARE * free)
        there = there if self.memory is None else self.memory - self.resident
        largest = self.largest
        if there is not None and largest.size + carried > there:
            raise UsageError(
                f"blocks: {in_words(largest.size)} for the largest block, {largest.name}, and {in_words(carried)} for one "
                f"batch do not fit into {in_words(max(there, 0))}. Give a smaller --batch-size, or more memory."
            )
        at_once = most if there is None or not carried else min(most, (there - largest.size) // carried)
        weights = self.resident + sum(unit.size for unit in self.units)
        return Estimate(
            weights, self.resident, largest.size, largest.name, len(self.units), carried, there, at_once
        )


def blocks_of(model: nn.Module) -> Blocks | None:
    """How a network lies on disk; None for one that is in memory, or spread otherwise."""
    found: Blocks | None = model.__dict__.get(PLACE)
    return found


def lie_in_blocks_(
    model: nn.Module,
    tensors: Mapping[str, Stored] | None = None,
    *,
    device: torch.device | str = "cpu",
    memory: int | None = None,
) -> nn.Module:
    """Leave a network's weights on disk, to be read block by block; it computes on one device.

    Args:
        model: the network, in memory, or built without memory for its parameters, which are then in `tensors`.
        tensors: parameters and buffers by their names in the network; by default they are written to a temporary file.
        device: where it computes.
        memory: bytes that weights and activations between blocks may take; by default three quarters of what is free.
    """
    device = torch.device(device)
    tensors = _written(model) if tensors is None else tensors
    named: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):  # tied ones are stored once
        if name in tensors or id(parameter) not in named:
            named[id(parameter)] = name
    names = {n: tensors[named[id(p)]] for n, p in model.named_parameters(remove_duplicate=False)}
    units = []
    for name, module, repeats in _coming_and_going(model):
        weights = {
            path: (tensors[named[id(parameter)]], parameter.dtype)
            for path, parameter in module.named_parameters(remove_duplicate=False)
        }
        units.append(Unit(name, weights, repeats, device))
    if not units:
        raise UsageError("blocks: this network has no weights. Leave --device-map out.")
    away = {id(part) for unit in units for part in model.get_submodule(unit.name).modules()}
    resident = 0
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        for own, parameter in list(module.named_parameters(recurse=False)):
            if id(module) in away:
                value = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            else:
                value = names[prefix + own].read().to(device, parameter.dtype)
                resident += value.numel() * value.itemsize
            setattr(module, own, nn.Parameter(value, requires_grad=False))
        for own, buffer in list(module.named_buffers(recurse=False)):
            stored = tensors.get(prefix + own)
            setattr(module, own, (buffer if stored is None else stored.read().to(buffer.dtype)).to(device))
        module.__dict__["_execution_device"] = device
    for unit in units:
        module = model.get_submodule(unit.name)
        module.register_forward_pre_hook(unit.before, with_kwargs=True)
        module.register_forward_hook(unit.behind, with_kwargs=True, always_call=True)
    placed = model.__dict__[PLACE] = Blocks(units, resident, device, memory, names)
    placed.estimate()
    return model


def _coming_and_going(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """The modules whose weights come and go, and whether they repeat: blocks, and what else is large and has no parts."""
    blocks = list(_blocks(model))
    inside = {id(part) for _, block in blocks for part in block.modules()}
    alone = [
        (name, module)
        for name, module in model.named_modules()
        if id(module) not in inside and not any(True for _ in module.children())
    ]
    least = SMALL * max((_bytes(module) for _, module in blocks or alone), default=0)
    yield from ((name, block, True) for name, block in blocks)
    yield from ((name, module, False) for name, module in alone if _bytes(module) >= max(least, 1))


def _bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.itemsize for parameter in module.parameters())


def _blocks(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """What repeats in a network: members of its outermost lists in which two have children and are built alike."""
    for name, child in model.named_children():
        path = f"{prefix}{name}"
        members = list(child.children()) if isinstance(child, (nn.ModuleList, nn.Sequential)) else []
        kinds = [_kind(member) for member in members if any(True for _ in member.children())]
        if len(set(kinds)) < len(kinds):
            yield from _members(child, f"{path}.")
        else:
            yield from _blocks(child, f"{path}.")


def _members(parent: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The members of a list that hold weights; of those that are lists themselves, and have no forward, theirs."""
    for name, member in parent.named_children():
        if isinstance(member, (nn.ModuleList, nn.ModuleDict)):
            yield from _members(member, f"{prefix}{name}.")
        elif any(True for _ in member.parameters()):
            yield f"{prefix}{name}", member


def _kind(module: nn.Module) -> tuple[Any, ...]:
    return type(module), tuple((name, tuple(p.shape)) for name, p in module.named_parameters())


def _owner(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name


def _written(model: nn.Module) -> dict[str, Stored]:
    """The parameters in a temporary file, which goes when the process ends."""
    from onespike.runtime.stored import stored_in

    folder = tempfile.mkdtemp(prefix="onespike-blocks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "weights.safetensors"
    write(file, dict(model.named_parameters()))
    return stored_in([file])
