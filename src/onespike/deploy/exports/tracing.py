"""`torch.export` with an open batch size, where the network permits it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from onespike.deploy.exports.comparison import by_name
from onespike.errors import UsageError
from onespike.runtime.forward import evaluating

FIXED = "the size of its batch is fixed at {}: the network itself depends on it"


def trace(module: nn.Module, batch: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the exported program of a module, and what the reader should know about it."""
    args, kwargs = by_name(module, batch)

    def batched(leaf: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(leaf, Tensor) and leaf.dim() else None

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
    tensors = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    wanted = {
        leaf.shape[0] for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()
    }
    open_ = any(
        isinstance(size, torch.SymInt) for t in tensors if isinstance(t, Tensor) for size in t.shape[:1]
    )
    return program, () if open_ else (FIXED.format(max(wanted)),)
