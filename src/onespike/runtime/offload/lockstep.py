"""Many forwards with one reading of the weights: all of them enter a block before any enters the next.

Each forward runs in a thread of its own, one of them at a time: where it comes to a block, it stops, and what it has
computed so far waits in its frames, whatever the network does between blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from onespike.errors import UsageError, first_line
from onespike.runtime.forward import TURN, family
from onespike.runtime.offload.stored import Unit
from onespike.runtime.offload.way_back import Call, followed


class _Stopped(BaseException):
    """Raised in a forward that nobody needs any more."""


class Worker:
    """A piece of work in its thread, which runs while it has the baton."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: list[Any] = []
        self.error: BaseException | None = None
        self.ended = self.stopped = False
        self.at: Call | None = None
        self.without_gradients: tuple[Call, list[int]] | None = None
        self.passed = 0
        self.again = False
        """Whether it computes a block again, on the way back."""
        self.go, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.family = family()
        self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.go.acquire()
        TURN.worker, TURN.family = self, self.family
        grad, inference = self.modes
        # the way back waits at blocks, too, so it must not run in a thread that others need
        alone = torch.autograd.set_multithreading_enabled(False)
        try:
            with alone, torch.inference_mode(inference), torch.set_grad_enabled(grad):
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
    refusal = UsageError(
        f"blocks: a weight is used while its block does not run ({first_line(error)}). Take another device map."
    )
    refusal.__cause__ = error
    return refusal


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


class Conductor:
    """Takes pieces of work through the network together, unit by unit."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.loaded: tuple[Unit, list[nn.Module]] | None = None
        self.turns = self._turns()

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        self._free()

    def start(self, work: Callable[[], Any]) -> None:
        self.workers.append(Worker(work))
        self.workers[-1].resume()

    def carried(self) -> int:
        """Take the first work to the first block, and say how many bytes it carries there."""
        worker = self.workers[0]
        while worker.at is not None and not worker.at.unit.repeats:
            next(self.turns)
        self._free()
        return 0 if worker.at is None else worker.at.size()

    def results(self) -> Iterator[Any]:
        """All results in the order of the works, as soon as they are there."""
        for worker in self.workers:
            while not worker.ended:
                next(self.turns)
            yield worker.result.pop()

    def _turns(self) -> Iterator[None]:
        """Take all workers that wait at the hindmost unit through it, one per turn; then at the next."""
        while waiting := [(w, w.at) for w in self.workers if w.at is not None]:
            unit = min(waiting, key=lambda pair: pair[0].passed)[1].unit
            group = [(worker, call.module) for worker, call in waiting if call.unit is unit]
            self.loaded, unit.held = (unit, [module for _, module in group]), True
            unit.load(dict.fromkeys(self.loaded[1]))
            for worker, _ in group:
                worker.resume()
                yield
            self._free()

    def _free(self) -> None:
        if self.loaded is not None:
            (unit, modules), self.loaded = self.loaded, None
            unit.free(modules)
            unit.held = False
