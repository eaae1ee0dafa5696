"""A network whose weights stay on disk, and come into memory one block at a time.

Blocks are what repeats in the network: the members of its outermost lists in which two are built alike. What else is
large (an embedding, an output layer) comes and goes by itself, and the rest stays in memory. Hooks load the weights
before a forward and drop them behind it, so that every forward works; `lockstep` takes many batches through the
network with one reading of the weights.
"""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from onespike.errors import UsageError
from onespike.runtime.forward import SCHEDULE
from onespike.runtime.offload.lockstep import Conductor, arrive, leave
from onespike.runtime.offload.stored import Stored, Unit, stored_in, write

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SMALL = 1 / 16  # what is smaller than this part of the largest block stays in memory
SHARE = 3 / 4
"""The part of the free memory that weights and activations between blocks may take; a block's own work needs the rest."""
MOST = 64  # batches at once, each in a thread of its own
TENSORS = "_stored_tensors"
"""Where a network that was built without memory for its parameters keeps where these are."""


@dataclass(eq=False)
class Blocks:
    """How a network lies on disk, and the schedule by which its forwards run."""

    units: list[Unit]
    resident: int  # bytes of the weights that stay in memory
    device: torch.device
    memory: int | None  # bytes for weights and activations between blocks; None for a part of what is free
    tensors: Mapping[str, Stored]  # where each parameter is stored, by its name, and some buffers

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # a converted copy lies on the same disk

    @property
    def largest(self) -> Unit:
        return max(self.units, key=lambda unit: unit.size)

    def fitting(self, carried: int) -> int:
        """How many batches go through the network together, if each carries so many bytes; at least one must fit."""
        room, largest = self._room(), self.largest
        if room is None:
            return MOST
        if largest.size + carried > room:
            raise UsageError(
                f"blocks: {_in_words(largest.size)} for the largest block, {largest.name}, and {_in_words(carried)} for one "
                f"batch do not fit into {_in_words(max(room, 0))}. Give smaller batches, or more memory."
            )
        return min(MOST, (room - largest.size) // carried) if carried else MOST

    def _room(self) -> int | None:
        if self.memory is not None:
            return self.memory - self.resident
        free = _available(self.device)
        return None if free is None else int(SHARE * free)

    def in_turn(self, works: Iterable[Callable[[], Any]], gradients: bool) -> Iterator[Any]:
        """The results of pieces of work in their order; as many as fit into memory go through the network together.

        A way back keeps what enters each block.
        """
        copies = (sum(unit.repeats for unit in self.units) or len(self.units)) if gradients else 1
        waiting = iter(works)
        for first in waiting:
            with closing(Conductor()) as conductor:
                conductor.start(first)
                for work in islice(waiting, self.fitting(copies * conductor.carried()) - 1):
                    conductor.start(work)
                yield from conductor.results()

    def estimate(self, work: Callable[[], Any], batch_count: int) -> str:
        """What so many batches take, by the first one on its way to the first block; refused where it does not fit."""
        with closing(Conductor()) as conductor:
            conductor.start(work)
            carried = conductor.carried()
        at_once, room, largest = min(self.fitting(carried), batch_count), self._room(), self.largest
        weights = self.resident + sum(unit.size for unit in self.units)
        return (
            f"weights {_in_words(weights)} in {len(self.units)} parts; in memory {_in_words(self.resident)} always, "
            f"{_in_words(largest.size)} for {largest.name}, {_in_words(carried)} carried per batch; "
            f"available {'unknown' if room is None else _in_words(room)}: {at_once} batches at once"
        )


def blocks_of(model: nn.Module) -> Blocks | None:
    """How a network lies on disk; None for one that is in memory, or spread otherwise."""
    return model.__dict__.get(SCHEDULE)


def lie_in_blocks_(
    model: nn.Module, device: torch.device | str = "cpu", memory: int | None = None
) -> nn.Module:
    """Leave a network's weights on disk, to be read block by block; it computes on one device.

    A network that is in memory is written to a temporary file first.
    """
    device, written = torch.device(device), model.__dict__.pop(TENSORS, None)
    tensors: Mapping[str, Stored] = _written(model) if written is None else written
    units, away = list[Unit](), set[nn.Module]()
    for name, module, repeats in _coming_and_going(model):
        paths = dict(module.named_parameters(remove_duplicate=False))
        weights = {path: (tensors[f"{name}.{path}"], p.dtype) for path, p in paths.items()}
        unit = Unit(name, weights, repeats, device)
        units.append(unit)
        unit.free([module])
        away.update(module.modules())
        module.register_forward_pre_hook(partial(arrive, unit), with_kwargs=True)
        module.register_forward_hook(partial(leave, unit), with_kwargs=True, always_call=True)
    if not units:
        raise UsageError("blocks: this network has no weights. Leave the device map out.")
    resident = 0
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in list(module.named_parameters(recurse=False)) if module not in away else ():
            value = tensors[prefix + name].read().to(device, parameter.dtype)
            resident += value.nbytes
            setattr(module, name, nn.Parameter(value, requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            stored = tensors.get(prefix + name)
            setattr(module, name, (buffer if stored is None else stored.read().to(buffer.dtype)).to(device))
        module.__dict__["_execution_device"] = device
    blocks = model.__dict__[SCHEDULE] = Blocks(units, resident, device, memory, tensors)
    blocks.fitting(0)
    return model


def _coming_and_going(model: nn.Module) -> list[tuple[str, nn.Module, bool]]:
    """The modules whose weights come and go, and whether they repeat: blocks, and what else is large and has no parts."""
    blocks = list(_repeating(model))
    inside = {part for _, block in blocks for part in block.modules()}
    alone = [(n, m) for n, m in model.named_modules() if m not in inside and not list(m.children())]
    least = max(1, SMALL * max((_bytes(module) for _, module in blocks or alone), default=0))
    large = [(name, module, False) for name, module in alone if _bytes(module) >= least]
    return [*((name, block, True) for name, block in blocks), *large]


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _repeating(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """What repeats in a network: members of its outermost lists in which two have children and are built alike."""
    for name, child in model.named_children():
        listed = child.children() if isinstance(child, (nn.ModuleList, nn.Sequential)) else ()
        members = [member for member in listed if list(member.children())]
        kinds = [(type(m), tuple((n, p.shape) for n, p in m.named_parameters())) for m in members]
        inner = _members if len(set(kinds)) < len(kinds) else _repeating
        yield from inner(child, f"{prefix}{name}.")


def _members(parent: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The members of a list that hold weights; of those that are lists themselves, and have no forward, theirs."""
    for name, member in parent.named_children():
        if isinstance(member, (nn.ModuleList, nn.ModuleDict)):
            yield from _members(member, f"{prefix}{name}.")
        elif list(member.parameters()):
            yield f"{prefix}{name}", member


def _written(model: nn.Module) -> dict[str, Stored]:
    """The parameters in a temporary file, which goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="onespike-blocks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "weights.safetensors"
    write(file, dict(model.named_parameters()))
    stored = stored_in([file])
    first = {id(p): stored[name] for name, p in model.named_parameters()}  # tied ones are stored once
    return {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}


def _available(device: torch.device) -> int | None:
    """Bytes that may still be taken on a device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = []
    with suppress(OSError):  # what Linux expects to be able to give out without swapping
        lines = re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        limits += [1024 * int(line) for line in lines]
    with suppress(OSError, ValueError):  # no container or batch job, or one without a limit ("max")
        files = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current", "stat"))
        limit, used, details = (file.read_text(encoding="ascii") for file in files)
        cached = re.findall(r"^inactive_file (\d+)$", details, re.M)
        limits.append(int(limit) - int(used) + sum(map(int, cached)))
    return min(limits, default=None)


def parse_size(text: str) -> int:
    """Bytes of a size.

    >>> parse_size("1.5GB"), parse_size("200 mb")
    (1500000000, 200000000)
    """
    parts = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([KMGT]B)", text.strip().upper())
    size = int(float(parts[1]) * UNITS[parts[2]]) if parts else 0
    if size <= 0:
        raise UsageError(f"{text!r} is no size of memory. Write for example 8GB or 500MB.")
    return size


def _in_words(size: float) -> str:
    """A size for people, such as 3.42 GB."""
    unit = next((name for name, least in reversed(UNITS.items()) if size >= 0.9995 * least), "KB")
    return f"{size / UNITS[unit]:.2f} {unit}"
