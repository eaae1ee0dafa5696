"""`torch.export` with an open batch size, where the network permits it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from onespike.deploy.exports.comparison import by_name
from onespike.errors import UsageError
from onespike.runtime.forward import evaluating

FIXED = "the size of its batch is fixed at {}: the network itself depends on it"
LENGTH = "its inputs have {} tokens: the network itself, or a pass, depends on their number"


def trace(module: nn.Module, batch: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the exported program of a module, and what the reader should know about it."""
    args, kwargs = by_name(module, batch)

    def batched(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return None
        # inputs that are not floats are tokens, whose number is left open, too
        return dict.fromkeys(range(1 if leaf.is_floating_point() else leaf.dim()), torch.export.Dim.AUTO)

    # the wrapper's forward takes *args and **kwargs
    shapes: dict[str, Any] = {"args": tuple(tree_map(batched, a) for a in args)} if args else {}
    shapes |= {"kwargs": {name: tree_map(batched, a) for name, a in kwargs.items()}} if kwargs else {}
    try:
        with evaluating(module), torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise UsageError(
            f"export: torch.export cannot follow this network ({type(error).__name__}: {reason.rstrip('.')}). "
            "Its forward must not depend on values."
        ) from error
    program._guards_code = []  # of several inputs they speak by names that only the network's own forward has
    notes = []
    for node in inputs_of(program):
        fixed = [not isinstance(size, torch.SymInt) for size in node.meta["val"].shape]
        if fixed[0]:
            notes.append(FIXED.format(node.meta["val"].shape[0]))
        if len(fixed) > 1 and fixed[1] and not node.meta["val"].is_floating_point():
            notes.append(LENGTH.format(node.meta["val"].shape[1]))
    return program, tuple(dict.fromkeys(notes))


def inputs_of(program: Any) -> list[fx.Node]:
    """The tensors that a program takes, in order; constants of the call, such as `use_cache=False`, are none of them."""
    names = set(map(str, program.graph_signature.user_inputs))
    found = (node for node in program.graph.nodes if node.op == "placeholder" and node.name in names)
    return [node for node in found if isinstance(node.meta["val"], Tensor) and node.meta["val"].dim()]
