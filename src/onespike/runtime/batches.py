"""Batches of any form: a tensor, a tuple of positional arguments, a mapping by name, or a list of images.

Every stage reads, moves, cuts and counts batches through these functions.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.errors import DataError, UsageError


def call(model: Callable[..., Any], batch: Any) -> Any:
    """Give a batch to a network: a mapping by name, a tuple or list by position, anything else as one input."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


@contextmanager
def readable(verb: str, batch: Any) -> Iterator[None]:
    """Say in one line that a network cannot compute with the type of a batch's numbers, where torch has an error for it."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        types = {x.dtype for x in tree_leaves(batch) if isinstance(x, Tensor)}
        if "dtype" not in str(error) and not any(x.is_complex or x == torch.uint8 for x in types):
            raise
        names = ", ".join(sorted(str(x).removeprefix("torch.") for x in types))
        raise DataError(
            f"{verb}: the network cannot compute with inputs of type {names}. Give numbers of the type of its weights, "
            "prepared as in training; of an image, x.float() / 255."
        ) from error


def labeled(verb: str, batch: Any) -> tuple[Any, Any]:
    """Return inputs and labels of a batch with both; NaN or infinite inputs are refused, but for masks."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise DataError(f"{verb}: a batch must be (inputs, labels). Without labels, give (inputs, None).")
    inputs = batch[0].items() if isinstance(batch[0], Mapping) else [("", batch[0])]
    for name, part in inputs:
        numbers = [x for x in tree_leaves(part) if isinstance(x, Tensor) and x.is_floating_point()]
        if "mask" not in name and not all(bool(x.isfinite().all()) for x in numbers):
            raise DataError(f"{verb}: an input holds NaN or infinite values. Check it and its preprocessing.")
    return batch[0], batch[1]


def inputs_of(model: nn.Module, batch: Any) -> Any:
    """Return a batch without labels, judged by the network's signature: `forward(x)` takes x alone of (x, labels).

    A part that would fill an optional argument may be a label or an input, so it is refused.

    >>> inputs_of(nn.Linear(2, 3), [torch.zeros(1, 2), torch.tensor([7])])
    tensor([[0., 0.]])
    """
    if not isinstance(batch, (tuple, list)) or not batch:
        return batch
    if len(batch) == 1:
        return batch[0] if isinstance(batch[0], Tensor) else batch
    arguments, required = _positional(model)
    if len(arguments) == required:  # leftover parts are not for the network
        return batch[0] if required == 1 else batch[:required]
    if any(isinstance(x, (Tensor, Mapping, tuple, list)) for x in batch[required:]):
        names = ", ".join(p.name for p in arguments)
        raise UsageError(
            f"a batch holds {len(batch)} parts, and {type(model).__name__}.forward({names}) may take some of them or not: "
            "are they inputs or labels? Give inputs only, ((x,) for x, _ in loader), or a mapping with their names."
        )
    return batch


def _positional(model: nn.Module) -> tuple[list[inspect.Parameter], int]:
    """Return the positional arguments of a network, and how many of them it requires."""
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    arguments = [p for p in inspect.signature(model.forward).parameters.values() if p.kind not in by_name]
    return arguments, sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in arguments)


def batches_of_inputs(model: nn.Module, inputs: Any) -> list[Any]:
    """Return anything that `spike` takes as a list of batches without labels.

    A tensor or a mapping is one batch, and so is a tuple of tensors for a network of several inputs.

    >>> cuts = torch.zeros(6, 2).split(3)
    >>> len(batches_of_inputs(nn.Linear(2, 3), cuts)), len(batches_of_inputs(nn.Bilinear(2, 2, 1), cuts))
    (2, 1)
    """
    tuple_of_tensors = isinstance(inputs, tuple) and all(isinstance(x, Tensor) for x in inputs)
    one = isinstance(inputs, (Tensor, Mapping)) or (tuple_of_tensors and _positional(model)[1] > 1)
    return [inputs_of(model, batch) for batch in ([inputs] if one else inputs)]


def logits(output: Any) -> Any:
    """Return a classifier's scores: its output, or the field `logits` of its output, as in transformers."""
    return getattr(output, "logits", output)


def count(batch: Any) -> int:
    """Return the number of inputs in a batch: rows of its first tensor, or length of its first argument if a list."""
    parts = tuple(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, (tuple, list)) and parts and isinstance(parts[0], (tuple, list)):
        return len(parts[0])
    tensor = next((x for x in tree_leaves(batch) if isinstance(x, Tensor)), None)
    return len(tensor) if tensor is not None and tensor.dim() else 1


def to(batch: Any, device: torch.device | str) -> Any:
    return tree_map_only(Tensor, lambda x: x.to(device), batch)


def take(batch: Any, chosen: slice | Tensor) -> Any:
    """Return some inputs of a batch, by a slice or by their numbers.

    A part without one row per input (a flag, a shared mask) stays whole.
    """
    size = count(batch)

    def part(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[chosen] if value.dim() and len(value) == size else value
        if isinstance(value, list) and len(value) == size and all(isinstance(x, Tensor) for x in value):
            return value[chosen] if isinstance(chosen, slice) else [value[int(i)] for i in chosen]
        if isinstance(value, Mapping):
            return {name: part(x) for name, x in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(part(x) for x in value)
        return value

    # outermost, a list holds arguments, and not images
    return [part(argument) for argument in batch] if isinstance(batch, list) else part(batch)


def split(batch: Any, size: int) -> Iterator[Any]:
    """Yield a batch in parts of at most `size` inputs."""
    for start in range(0, count(batch), size):
        yield take(batch, slice(start, start + size))


def take_first(batches: Iterable[Any], inputs: int) -> list[Any]:
    chosen, seen = [], 0
    for batch in batches:
        if seen >= inputs:
            break
        chosen.append(take(batch, slice(0, inputs - seen)))
        seen += count(batch)
    return chosen


def join(batches: Sequence[Any]) -> Any:
    """Join batches of one form; return the first alone where their inputs differ in shape."""
    sizes = [count(batch) for batch in batches]

    def together(parts: Sequence[Any], within: bool = True) -> Any:
        first = parts[0]
        if isinstance(first, Tensor) and first.dim():
            same = [part.shape for part in parts] == [(size, *first.shape[1:]) for size in sizes]
            return torch.cat(list(parts)) if same else first
        if isinstance(first, Mapping):
            return {name: together([part[name] for part in parts]) for name in first}
        if within and isinstance(first, list):  # images of any size; outermost, a list holds arguments
            return [image for part in parts for image in part]
        if isinstance(first, (tuple, list)):
            return type(first)(together(group) for group in zip(*parts, strict=True))
        return first

    joined = together(batches, within=False)
    whole = count(joined) == sum(sizes) and has_rows(joined) == has_rows(batches[0])
    return joined if whole else batches[0]


def has_rows(batch: Any) -> bool:
    """Return whether everything in a batch has one row per input: then nothing is left of it where none is taken."""
    rest = tree_leaves(take(batch, slice(0, 0)))
    return all(not x.dim() or not len(x) for x in rest if isinstance(x, Tensor))
