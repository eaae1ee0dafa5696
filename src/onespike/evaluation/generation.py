"""Text written by a converted network: each forward is counted, the prompt's apart from those that write."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.energy.ledger import Ledger
from onespike.energy.metering import metered
from onespike.runtime.batches import to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites.padding import mask_of

CACHES = ("dynamic", "static")


@dataclass(frozen=True)
class Spent:
    """The cost of reading or writing some tokens, padding left out; a spike counts by its size."""

    tokens: int = 0
    spikes: float = 0.0
    energy_pj: float = 0.0
    original_pj: float = 0.0  # of the original network
    seconds: float = 0.0  # with those of counting
    spiking_pj: float = 0.0  # the part of the original's that belongs to products that spike

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Written:
    """The text of a network: tokens with the prompt before them, and the cost of each forward, the prompt's first."""

    ids: Tensor
    forwards: tuple[Spent, ...]

    @property
    def prefill(self) -> Spent:
        """The cost of reading the prompt, which gives the first token."""
        return self.forwards[0]

    @property
    def decode(self) -> Spent:
        """The cost of writing all later tokens, one forward each."""
        return sum(self.forwards[1:], Spent())


def write(
    snn: Any,
    batch: dict[str, Tensor],
    tokens: int,
    *,
    column: str = "counts",
    cache: str = "dynamic",
    temperature: float = 0.0,
    seed: int = 0,
    streamer: Any = None,
) -> Written:
    """Let a converted network of transformers continue prompts with its `generate`; count each forward by itself.

    `batch` has `input_ids` and `attention_mask`, shorter prompts padded on the left. The cache is `dynamic`, or `static`
    for one of fixed size. At temperature 0 the best token is taken each time, else one is sampled.
    """
    counting, forwards, starts = ExitStack(), list[Spent](), list[tuple[Ledger, int, float]]()

    def begin(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        mask = mask_of({**kwargs, "input_ids": ids})
        ledger = counting.enter_context(metered(model, Ledger()))
        ledger.inputs, ledger.padding = len(ids), mask  # its own hook comes too late for this forward
        size = ids.numel() if mask is None else int(mask.sum())
        starts.append((ledger, size, time.perf_counter()))

    def end(model: nn.Module, args: Any, output: Any) -> None:
        ledger, size, started = starts.pop()
        seconds = time.perf_counter() - started
        counting.close()
        original = ledger.original_pj()
        energy, spiking = ledger.ratio(column) * original, original * (1 - ledger.analog_share)
        forwards.append(Spent(size, ledger.events("counts"), energy, original, seconds, spiking))

    sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
    torch.manual_seed(seed)
    before, after = snn.register_forward_pre_hook(begin, with_kwargs=True), snn.register_forward_hook(end)
    with before, after, evaluating(snn), counting:
        ids = snn.generate(
            **to(batch, device_of(snn)),
            max_new_tokens=tokens,
            cache_implementation=cache,
            disable_compile=True,
            streamer=streamer,
            **sampling,
        )
    return Written(ids, tuple(forwards))
