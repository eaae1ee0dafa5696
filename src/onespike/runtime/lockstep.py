"""Many forwards of a network in blocks, with one reading of its weights: all of them enter a block before any enters
the next.

Each forward runs in a thread of its own, one of them at a time: where it comes to a block, it stops, and what it has
computed so far waits in its frames, whatever the network does between blocks. A network in memory runs one forward
after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.errors import UsageError
from onespike.runtime.blocks import Blocks, Estimate, Unit, blocks_of

T = TypeVar("T")

MOST = 64
"""Threads at once."""
PLAIN = (Tensor, bool, int, float, str)
"""What a block may return where gradients are wanted, in tuples, lists and mappings."""

_here = threading.local()


class _Stopped(BaseException):
    """Raised in a forward that nobody needs any more."""


@dataclass
class Record:
    """One call of a unit on the way forward, kept for the way back."""

    unit: Unit
    module: nn.Module
    args: Any
    kwargs: Any
    versions: list[int]
    gradients: dict[int, Tensor] = field(default_factory=dict)


class _Worker(Generic[T]):
    """A piece of work in its thread, which runs while it has the baton."""

    def __init__(self, work: Callable[[], T], keeps: bool) -> None:
        self.work, self.keeps = work, keeps
        self.result: list[T] = []
        self.error: BaseException | None = None
        self.ended = self.stopped = False
        self.at: tuple[Unit, nn.Module, int] | None = None
        self.passed, self.waited = 0, 0.0
        self.records: list[Record] = []
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.family = threading.get_ident()
        self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.go.acquire()
        _here.worker = self
        grad, inference = self.modes
        try:
            if not self.stopped:
                with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                    self.result.append(self.work())
        except BaseException as error:  # noqa: BLE001 - raised again where the results are wanted
            self.error = error
        self.ended, self.at = True, None
        del self.work  # and the batch with it
        self.back.release()

    def resume(self) -> None:
        """Let it run until it comes to a unit or ends."""
        self.go.release()
        self.back.acquire()
        if self.error is not None and not isinstance(self.error, _Stopped):
            raise _explained(self.error)

    def stop(self) -> None:
        if not self.ended:
            self.stopped = True
            self.go.release()
            self.back.acquire()

    def wait_at(self, unit: Unit, module: nn.Module, carried: int) -> None:
        started, self.at = time.perf_counter(), (unit, module, carried)
        self.back.release()
        self.go.acquire()
        self.waited += time.perf_counter() - started
        self.at = None
        self.passed += 1
        if self.stopped:
            raise _Stopped


def _explained(error: BaseException) -> BaseException:
    """Weights that are used outside the forward of their module are not there."""
    if isinstance(error, (RuntimeError, NotImplementedError)) and "meta" in str(error):
        reason = str(error).splitlines()[0].rstrip(".")
        found = UsageError(
            f"blocks: a weight is used while its block does not run ({reason}). Take another --device-map."
        )
        found.__cause__ = error
        return found
    return error


def arrive(unit: Unit, module: nn.Module, args: Any, kwargs: Any) -> bool:
    """A forward comes to a unit; whether somebody else loads and drops its weights."""
    worker: _Worker[Any] | None = getattr(_here, "worker", None)
    if worker is None:
        return bool(getattr(_here, "conducting", False))
    worker.wait_at(unit, module, _size((args, kwargs)))
    if worker.keeps:
        versions = [x._version for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        worker.records.append(Record(unit, module, args, kwargs, versions))
        torch.set_grad_enabled(False)
    return True


def leave(unit: Unit, module: nn.Module, output: Any) -> tuple[bool, Any]:
    """A forward leaves a unit; whether somebody else drops its weights, and what it goes on with."""
    worker: _Worker[Any] | None = getattr(_here, "worker", None)
    if worker is None:
        return bool(getattr(_here, "conducting", False)), output
    if worker.keeps and worker.records:
        torch.set_grad_enabled(True)
        record = worker.records[-1]
        now = [x._version for x in tree_leaves((record.args, record.kwargs)) if isinstance(x, Tensor)]
        if now != record.versions:
            raise UsageError(
                f"blocks: {unit.name} overwrites its input, so that its gradients cannot be taken afterwards. "
                "Leave out the passes that need them, or take another --device-map."
            )
        hidden = [x for x in tree_leaves(output) if x is not None and not isinstance(x, PLAIN)]
        if hidden:
            raise UsageError(
                f"blocks: {unit.name} returns a {type(hidden[0]).__name__}, through which gradients cannot be followed. "
                "Leave out the passes that need them, or take another --device-map."
            )
        number = iter(range(len(tree_leaves(output))))
        output = tree_map_only(Tensor, lambda x: _Leaving.come(x, record, next(number)), output)
    return True, output


@contextmanager
def conducting() -> Iterator[None]:
    """Within this context the weights that this thread needs are there already."""
    _here.conducting = True
    try:
        yield
    finally:
        _here.conducting = False


def family() -> int:
    """The thread on whose behalf this one runs: who visits there, visits here."""
    worker: _Worker[Any] | None = getattr(_here, "worker", None)
    return threading.get_ident() if worker is None else worker.family


def waited() -> float:
    """Seconds that this forward has waited for others and for weights."""
    worker: _Worker[Any] | None = getattr(_here, "worker", None)
    return 0.0 if worker is None else worker.waited


def in_turn(model: nn.Module, works: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of pieces of work in their order, each of which runs forwards of a network or of its copies.

    Where the network lies in blocks, as many as fit into memory go through it together. What else one piece of work
    does must not depend on how far others are.
    """
    blocks = blocks_of(model)
    if blocks is None:
        for work in works:
            yield work()
        return
    waiting = iter(works)
    while first := list(islice(waiting, 1)):
        conductor = Conductor[T](blocks)
        try:
            conductor.start(first[0])
            most = conductor.room(MOST)
            for work in islice(waiting, most - 1):
                conductor.start(work)
            yield from conductor.results()
        finally:
            conductor.stop()


def estimate(model: nn.Module, work: Callable[[], Any], batches: int) -> Estimate | None:
    """What a network in blocks takes for so many batches, by the first one on its way to the first block."""
    blocks = blocks_of(model)
    if blocks is None:
        return None
    conductor = Conductor[Any](blocks)
    try:
        conductor.start(work)
        conductor.room(MOST)
        return blocks.estimate(conductor.carried, min(MOST, batches))
    finally:
        conductor.stop()


class Conductor(Generic[T]):
    """Hands the baton to one worker after the other, and loads what they wait for."""

    def __init__(self, blocks: Blocks, keeps: bool = False) -> None:
        self.blocks, self.keeps = blocks, keeps
        self.workers: list[_Worker[T]] = []
        self.carried = 0
        self.loaded: tuple[Unit, list[nn.Module]] | None = None

    def start(self, work: Callable[[], T]) -> None:
        worker = _Worker(work, self.keeps)
        self.workers.append(worker)
        worker.resume()

    def room(self, most: int, kept: int = 1) -> int:
        """How many works go together, by what the first carries into the first block, kept so many times."""
        worker = self.workers[0]
        while worker.at is not None and not worker.at[0].repeats:
            self._step(worker.at[0])
        self.carried = 0 if worker.at is None else kept * worker.at[2]
        return self.blocks.estimate(self.carried, most).at_once

    def results(self) -> Iterator[T]:
        """All results in the order of the works, as soon as they are there."""
        given = 0
        while True:
            while given < len(self.workers) and self.workers[given].ended:
                yield self.workers[given].result.pop()
                given += 1
            behind = min((w for w in self.workers if w.at is not None), key=lambda w: w.passed, default=None)
            if behind is None or behind.at is None:
                return
            for _ in self._steps(behind.at[0]):
                while given < len(self.workers) and self.workers[given].ended:
                    yield self.workers[given].result.pop()
                    given += 1

    def _step(self, unit: Unit) -> None:
        for _ in self._steps(unit):
            pass

    def _steps(self, unit: Unit) -> Iterator[None]:
        """Take all workers that wait at a unit through it."""
        group = [w for w in self.workers if w.at is not None and w.at[0] is unit]
        modules = list({id(w.at[1]): w.at[1] for w in group if w.at is not None}.values())
        self.load(unit, modules)
        for worker in group:
            worker.resume()
            yield
        self.free()

    def load(self, unit: Unit, modules: list[nn.Module]) -> None:
        self.loaded = unit, modules
        unit.load(modules)

    def free(self) -> None:
        if self.loaded is not None:
            unit, modules = self.loaded
            self.loaded = None
            unit.free(modules)

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.free()


class _Leaving(torch.autograd.Function):
    """What leaves a block: the same values, whose gradients are kept for the way back through it."""

    @staticmethod
    def come(x: Tensor, record: Record, number: int) -> Tensor:
        if not x.is_floating_point():
            return x
        anchor = torch.zeros((), device=x.device, requires_grad=True)
        left: Tensor = _Leaving.apply(anchor, x, record, number)
        return left

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, record: Record, number: int) -> Tensor:
        ctx.record, ctx.number = record, number
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        kept = ctx.record.gradients
        known = kept.get(ctx.number)
        kept[ctx.number] = gradients[0] if known is None else known + gradients[0]
        return None, None, None, None


def _size(value: Any) -> int:
    """Bytes of the tensors that are handed over."""
    sizes = {
        x.untyped_storage().data_ptr(): x.numel() * x.itemsize
        for x in tree_leaves(value)
        if isinstance(x, Tensor)
    }
    return sum(sizes.values())
