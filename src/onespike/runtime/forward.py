"""Run a network in evaluation mode, on its device, by its schedule."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass,
)

from onespike.errors import UsageError

T = TypeVar("T")
SCHEDULE = "_schedule"  # where a network that is not in memory keeps how its forwards run
SPLIT = {
    "_convolution", "_linalg_solve_ex", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "convolution_backward", "kl_div", "linalg_norm", "linalg_solve", "linalg_solve_ex", "linalg_vector_norm",
    "mean", "mse_loss", "norm", "prod", "std", "sum", "var",
}  # fmt: skip
"""Operations that sum in an order which depends on the number of threads; inference mode hands composite ones on whole."""


def in_memory(model: nn.Module) -> bool:
    """Whether all weights of a network are there, whoever asks for them."""
    return SCHEDULE not in model.__dict__


def in_turn(model: nn.Module, works: Iterable[Callable[[], T]], *, gradients: bool = False) -> Iterator[T]:
    """The results of pieces of work in their order, each of which runs forwards of a network or of its copies.

    They may go through the network together, so what else one of them does must not depend on how far others are. With
    `gradients` each takes its own; parts of the network may then run twice, first without gradients.
    """
    schedule: Any = model.__dict__.get(SCHEDULE)
    return (work() for work in works) if schedule is None else schedule.in_turn(works, gradients)


def estimate(model: nn.Module, work: Callable[[], Any], batch_count: int) -> str | None:
    """What so many batches take of memory, in words, by the first one; nothing where all weights are there."""
    schedule: Any = model.__dict__.get(SCHEDULE)
    return None if schedule is None else schedule.estimate(work, batch_count)


class _Turn(threading.local):
    """Of a thread that runs one of several forwards: its worker, on whose behalf, and the seconds that it waited for others."""

    def __init__(self) -> None:
        self.worker: Any = None
        self.family = threading.get_ident()  # who visits there, visits here
        self.waited = 0.0


TURN = _Turn()


def clock() -> float:
    """Seconds in which this thread had its turn, from any moment on."""
    return time.perf_counter() - TURN.waited


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation and inference mode for the block, then restore each module's training flag."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def check_module(verb: str, model: Any) -> None:
    """Refuse what is no network of torch."""
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{verb}: the network must be a torch.nn.Module, not {type(model).__name__}. Give the network itself."
        )


def check_network(verb: str, model: Any) -> None:
    """Refuse what is no network of torch, or one whose products or weights another library hides."""
    check_module(verb, model)
    for name, module in model.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule)
        hidden = "is scripted or traced by torch.jit, which hides its products" if scripted else ""
        for kind in {type(p) for p in module.parameters(recurse=False) if is_traceable_wrapper_subclass(p)}:
            if "distributed" not in kind.__module__:
                hidden = f"has weights of type {kind.__name__}: another library has quantized it already"
        if hidden:
            raise UsageError(f"{verb}: {name or 'the network'} {hidden}. Give the network as it was before.")


LARGE = 2**24  # parameters above which all threads are worth watching every operation


class InOrder(TorchDispatchMode):
    """Within this context sums have one order: the operations whose last bits depend on threads take one thread.

    torch cuts long sums among its threads, oneDNN convolutions and LAPACK matrices likewise. What takes most of the time,
    products of matrices, keeps all threads: each sum in it belongs to one of them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket.__name__ not in SPLIT:
            return operation(*args, **(kwargs or {}))
        with one_thread():
            return operation(*args, **(kwargs or {}))


@contextmanager
def one_thread() -> Iterator[None]:
    """Work on one thread, and in one order without `InOrder`, which costs much where operations are many and small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch.set_num_threads(threads)


def in_order(model: nn.Module) -> AbstractContextManager[None]:
    """Let sums have one order: on one thread, or by `InOrder` where the products of a large network need all of them."""
    large = sum(p.numel() for p in model.parameters()) > LARGE and device_of(model).type == "cpu"
    return InOrder() if large and torch.get_num_threads() > 1 else one_thread()


def device_of(model: nn.Module) -> torch.device:
    """Where a network computes: its first weight's place, or the one that hooks move its weights or inputs to."""
    for module in model.modules():
        if "_execution_device" in module.__dict__:
            return torch.device(module.__dict__["_execution_device"])
        hook: Any = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            if getattr(part, "execution_device", None) is not None:
                return torch.device(part.execution_device)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if not tensor.is_meta:
                return tensor.device
    return torch.device("cpu")
