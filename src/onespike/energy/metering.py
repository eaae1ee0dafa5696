"""Metering: within `metered(model)` a ledger counts every forward of a converted network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from torch import nn

from onespike.conversion.attach import Analog, Neurons
from onespike.energy.analog_functions import AnalogFunctions
from onespike.energy.ledger import Ledger
from onespike.runtime.batches import count
from onespike.sites import visiting
from onespike.sites.coverage import Coverage, Operations, Owners
from onespike.sites.padding import mask_of


def _count_inputs(ledger: Ledger, thread: int, model: nn.Module, args: Any, kwargs: Any) -> None:
    if thread == get_ident():
        ledger.inputs += count(args or kwargs)
        ledger.padding = mask_of(kwargs)


def _has_unruled(owner: Neurons) -> bool:
    return any(isinstance(site, Analog) and site.macs is not None for site in owner.values())


@contextmanager
def metered(model: nn.Module, ledger: Ledger | None = None, *, watch: bool | None = None) -> Iterator[Ledger]:
    """Count every forward of a converted network within this context; the outputs do not change.

    It counts forwards of its thread and refuses those of other threads. Give those copies of the network and separate
    ledgers, and add the ledgers up with `Ledger.merge`.

    Args:
        model: a converted network.
        ledger: the ledger to continue; a new one by default.
        watch: whether to look for products outside every rule, which costs time; by default only where the network
            has some.

    >>> import torch
    >>> from onespike import calibrate, convert
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.randn(64, 2)
    >>> snn = convert(model, calibrate(model, [x]))
    >>> with metered(snn) as ledger:
    ...     _ = snn(x)
    >>> ledger.macs
    1152
    """
    ledger = ledger if ledger is not None else Ledger()
    places = [module for module in model.modules() if isinstance(module, Neurons)]
    watch = any(_has_unruled(place) for place in places) if watch is None else watch
    with ExitStack() as stack:
        if places:
            stack.enter_context(visiting(model, ledger))
        forwards = model.register_forward_pre_hook(
            partial(_count_inputs, ledger, get_ident()), with_kwargs=True
        )
        stack.callback(forwards.remove)
        if ledger.every == 1:
            stack.enter_context(AnalogFunctions(ledger.functions))
        if watch:
            owners, ledger.coverage = Owners(model), Coverage()
            stack.callback(setattr, ledger, "coverage", None)
            stack.enter_context(owners.following())
            # the original network, whose MACs these are, runs once
            once = lambda: not places or places[0].now == 1  # noqa: E731
            stack.enter_context(Operations(owners, ledger.coverage, ledger.unruled, once))
        yield ledger
        ledger.settle()
