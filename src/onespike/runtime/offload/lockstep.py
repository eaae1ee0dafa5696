"""Many forwards with one reading of the weights: all of them enter a block before any enters the next.

Each forward runs in a thread of its own, one of them at a time: where it comes to a block, it stops, and what it has
computed so far waits in its frames, whatever the network does between blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onespike.errors import UsageError
from onespike.runtime.forward import TURN, family
from onespike.runtime.offload.stored import Unit

_here = threading.local()


class _Stopped(BaseException):
    """Raised in a forward that nobody needs any more."""


@dataclass
class Call:
    """One call of a unit."""

    unit: Unit
    module: nn.Module
    args: Any
    kwargs: Any

    def tensors(self) -> list[Tensor]:
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]

    def size(self) -> int:
        """Bytes of the tensors that are handed over."""
        sizes = {x.untyped_storage().data_ptr(): x.numel() * x.itemsize for x in self.tensors()}
        return sum(sizes.values())


class Recorder(Protocol):
    """Who hears of every call of a unit in one forward."""

    def enter(self, call: Call) -> None: ...
    def leave(self, output: Any) -> Any: ...


class Worker:
    """A piece of work in its thread, which runs while it has the baton."""

    def __init__(self, work: Callable[[], Any], recorder: Recorder | None) -> None:
        self.work, self.recorder = work, recorder
        self.result: list[Any] = []
        self.error: BaseException | None = None
        self.ended = self.stopped = False
        self.at: Call | None = None
        self.passed = 0
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.family = family()
        self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.go.acquire()
        _here.worker, TURN.family = self, self.family
        grad, inference = self.modes
        try:
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
        if self.error is not None and not self.stopped:
            raise _explained(self.error)

    def stop(self) -> None:
        if not self.ended:
            self.stopped = True
            self.resume()

    def wait_at(self, call: Call) -> None:
        started, self.at = time.perf_counter(), call
        self.back.release()
        self.go.acquire()
        TURN.waited += time.perf_counter() - started
        self.at = None
        self.passed += 1
        if self.stopped:
            raise _Stopped


def _explained(error: BaseException) -> BaseException:
    """Weights that are used outside the forward of their module are not there."""
    if not isinstance(error, (RuntimeError, NotImplementedError)) or "meta" not in str(error):
        return error
    reason = str(error).splitlines()[0].rstrip(".")
    refusal = UsageError(
        f"blocks: a weight is used while its block does not run ({reason}). Take another device map."
    )
    refusal.__cause__ = error
    return refusal


def arrive(unit: Unit, module: nn.Module, args: Any, kwargs: Any) -> None:
    """Hook: the weights are there when the forward of a unit begins."""
    worker: Worker | None = getattr(_here, "worker", None)
    if worker is not None:
        call = Call(unit, module, args, kwargs)
        worker.wait_at(call)
        if worker.recorder is not None:
            worker.recorder.enter(call)
    elif not unit.held:
        unit.load([module])


def leave(unit: Unit, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """Hook: the forward of a unit has ended, or failed."""
    worker: Worker | None = getattr(_here, "worker", None)
    if worker is None and not unit.held:
        unit.free([module])
    if worker is not None and worker.recorder is not None:
        return worker.recorder.leave(output)
    return output


class Conductor:
    """Hands the baton to one worker after the other, and loads what they wait for.

    `fitting` says how many works may go together, by the bytes that each carries from block to block.
    """

    def __init__(self, fitting: Callable[[int], int]) -> None:
        self.fitting = fitting
        self.workers: list[Worker] = []
        self.loaded: tuple[Unit, list[nn.Module]] | None = None
        self.turns = self._turns()

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        self.free()

    def start(self, work: Callable[[], Any], recorder: Recorder | None = None) -> None:
        self.workers.append(Worker(work, recorder))
        self.workers[-1].resume()

    def gather(self, first: Any, waiting: Iterator[Any], copies: int = 1) -> None:
        """Start the first (work, recorder), and as many of the waiting as fit; each keeps `copies` of what it carries."""
        self.start(*first)
        for work in islice(waiting, self.fitting(copies * self.carried()) - 1):
            self.start(*work)

    def carried(self) -> int:
        """Take the first work to the first block, and say how many bytes it carries there."""
        worker = self.workers[0]
        while worker.at is not None and not worker.at.unit.repeats:
            next(self.turns)
        self.free()
        return 0 if worker.at is None else worker.at.size()

    def results(self) -> Iterator[Any]:
        """All results in the order of the works, as soon as they are there."""
        for worker in self.workers:
            while not worker.ended:
                next(self.turns)
            yield worker.result.pop()
        self.free()

    def _turns(self) -> Iterator[None]:
        """Take all workers that wait at the hindmost unit through it, one per turn; then at the next."""
        while waiting := [(w, w.at) for w in self.workers if w.at is not None]:
            _, hindmost = min(waiting, key=lambda pair: pair[0].passed)
            group = [(worker, call.module) for worker, call in waiting if call.unit is hindmost.unit]
            self.load(hindmost.unit, [module for _, module in group])
            for worker, _ in group:
                worker.resume()
                yield
            self.free()

    def load(self, unit: Unit, modules: list[nn.Module]) -> None:
        self.loaded, unit.held = (unit, modules), True
        unit.load(dict.fromkeys(modules))

    def free(self) -> None:
        if self.loaded is not None:
            (unit, modules), self.loaded = self.loaded, None
            unit.free(modules)
            unit.held = False


def in_turn(fitting: Callable[[int], int], works: Iterator[Callable[[], Any]]) -> Iterator[Any]:
    """The results of pieces of work in their order; as many as fit into memory go through the network together."""
    waiting = ((work, None) for work in works)
    for first in waiting:
        with Conductor(fitting) as conductor:
            conductor.gather(first, waiting)
            yield from conductor.results()
