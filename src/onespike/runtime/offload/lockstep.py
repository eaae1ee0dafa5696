"""Many forwards with one reading of the weights: all of them enter a block before any enters the next.

Each forward runs in a thread of its own, one of them at a time: where it comes to a block, it stops, and what it has
computed so far waits in its frames, whatever the network does between blocks. Where gradients are wanted, each block
runs without them first, and is computed again on the way back.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.errors import UsageError, first_line
from onespike.runtime.forward import TURN
from onespike.runtime.offload.stored import Unit

PLAIN = (Tensor, bool, int, float, str, type(None))
"""What a block may return where gradients are wanted, in tuples, lists and mappings."""
REMEDY = "Leave out the passes that need them, or take another device map."


class _Stopped(BaseException):
    """Raised in a forward that nobody needs any more."""


@dataclass
class Call:
    unit: Unit
    module: nn.Module
    args: Any
    kwargs: Any

    def tensors(self) -> list[Tensor]:
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]

    def size(self) -> int:
        """Bytes of the tensors that are handed over."""
        return sum({x.untyped_storage().data_ptr(): x.nbytes for x in self.tensors()}.values())

    def versions(self) -> list[int]:
        return [x._version for x in self.tensors()]


class Worker:
    """A piece of work in its thread, which runs while it has the baton."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.outcome = Future[Any]()
        self.stopped = False
        self.at: Call | None = None
        self.without_gradients: tuple[Call, list[int]] | None = None
        self.passed = 0
        self.again = False  # whether it computes a block again, on the way back
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.family = TURN.family
        self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], Any]) -> None:
        self.go.acquire()
        TURN.worker, TURN.family = self, self.family
        grad, inference = self.modes
        # the way back waits at blocks, too, so it must not run in a thread that others need
        alone = torch.autograd.set_multithreading_enabled(False)
        try:
            with alone, torch.inference_mode(inference), torch.set_grad_enabled(grad):
                self.outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the results are wanted
            self.outcome.set_exception(error)
        self.back.release()

    def resume(self) -> None:
        """Let it run until it comes to a unit or ends."""
        self.go.release()
        self.back.acquire()
        error = self.outcome.exception() if self.outcome.done() and not self.stopped else None
        # weights that are used outside the forward of their module are not there
        if isinstance(error, (RuntimeError, NotImplementedError)) and "meta" in str(error):
            raise UsageError(
                f"blocks: a weight is used while its block does not run ({first_line(error)}). Take another device map."
            ) from error
        if error is not None:
            raise error

    def wait_at(self, call: Call) -> None:
        started, self.at = time.perf_counter(), call
        self.back.release()
        self.go.acquire()
        TURN.waited += time.perf_counter() - started
        self.at = None
        self.passed += 1
        if self.stopped:
            raise _Stopped


def arrive(unit: Unit, module: nn.Module, args: Any, kwargs: Any) -> None:
    """Hook: the weights are there when the forward of a unit begins."""
    worker: Worker | None = TURN.worker
    if worker is not None:
        worker.wait_at(call := Call(unit, module, args, kwargs))
        if torch.is_grad_enabled() and not worker.again:
            worker.without_gradients = call, call.versions()
            torch.set_grad_enabled(False)
    elif not unit.held:
        unit.load([module])


def leave(unit: Unit, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """Hook: the forward of a unit has ended, or failed."""
    worker: Worker | None = TURN.worker
    if worker is None and not unit.held:
        unit.free([module])
    if worker is None or worker.without_gradients is None:
        return output
    (call, versions), worker.without_gradients = worker.without_gradients, None
    torch.set_grad_enabled(True)
    return followed(call, versions, output)


def followed(call: Call, versions: list[int], output: Any) -> Any:
    """What a call returned without gradients, with a way back through the same call."""
    if call.versions() != versions:
        raise UsageError(
            f"blocks: {call.unit.name} overwrites its input, so that its gradients cannot be taken afterwards. {REMEDY}"
        )
    if hidden := [type(x).__name__ for x in tree_leaves(output) if not isinstance(x, PLAIN)]:
        raise UsageError(
            f"blocks: {call.unit.name} returns a {hidden[0]}, through which gradients cannot be followed. {REMEDY}"
        )
    values = _real(output)
    if not values:
        return output
    entered = {id(x): x for x in call.tensors()}
    anchor = torch.zeros((), requires_grad=True)  # gradients may begin within the block
    leaving = iter(_Again.apply(anchor, call, values, *entered.values()))
    return tree_map_only(Tensor, lambda x: next(leaving) if x.is_floating_point() else x, output)


def _real(output: Any) -> list[Tensor]:
    return [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]


class _Again(torch.autograd.Function):
    """The values of a call on the way forward, and the call itself on the way back."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: Call, values: list[Tensor], *entered: Tensor) -> Any:
        ctx.call, ctx.entered = call, entered
        ctx.set_materialize_grads(False)
        return tuple(x.detach() for x in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        call = ctx.call
        copies = {id(x): x.detach().requires_grad_(x.requires_grad) for x in ctx.entered}
        args, kwargs = tree_map_only(Tensor, lambda x: copies[id(x)], (call.args, call.kwargs))
        TURN.worker.again = True
        try:
            with torch.enable_grad():
                output = _real(call.module(*args, **kwargs))
        finally:
            TURN.worker.again = False
        pairs = zip(output, gradients, strict=True)
        reached = [(x, gradient) for x, gradient in pairs if gradient is not None and x.requires_grad]
        if reached:
            torch.autograd.backward([x for x, _ in reached], [gradient for _, gradient in reached])
        return None, None, None, *(x.grad for x in copies.values())


class Conductor:
    """Takes pieces of work through the network together, unit by unit."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.turns = self._turns()

    def close(self) -> None:
        """Stop what nobody needs any more, and drop the weights."""
        for worker in self.workers:
            if not worker.outcome.done():
                worker.stopped = True
                worker.resume()
        self.turns.close()

    def start(self, work: Callable[[], Any]) -> None:
        self.workers.append(Worker(work))
        self.workers[-1].resume()

    def carried(self) -> int:
        """Take the first work to the first block, and say how many bytes it carries there."""
        worker = self.workers[0]
        while worker.at is not None and not worker.at.unit.repeats:
            next(self.turns)
        self.turns.close()  # what was loaded on the way leaves its room
        self.turns = self._turns()
        return 0 if worker.at is None else worker.at.size()

    def results(self) -> Iterator[Any]:
        """All results in the order of the works, as soon as they are there."""
        while self.workers:
            while not self.workers[0].outcome.done():
                next(self.turns)
            yield self.workers.pop(0).outcome.result()

    def _turns(self) -> Generator[None]:
        """Take all workers that wait at the hindmost unit through it, one per turn; then at the next."""
        while waiting := [(w, w.at) for w in self.workers if w.at is not None]:
            unit = min(waiting, key=lambda pair: pair[0].passed)[1].unit
            group = [(worker, call.module) for worker, call in waiting if call.unit is unit]
            modules = list(dict.fromkeys(module for _, module in group))
            unit.held = True
            try:
                unit.load(modules)
                for worker, _ in group:
                    worker.resume()
                    yield
            finally:
                unit.free(modules)
                unit.held = False
