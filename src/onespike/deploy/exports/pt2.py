"""PyTorch's format: an exported program."""

import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.deploy.exports.base import Foreign, Request, example, export_format
from onespike.deploy.exports.comparison import Answer, Plain, Recorded, Run, reference, tensors
from onespike.deploy.exports.graph import bare, trace
from onespike.runtime.batches import call

FACTS = "onespike.json"


def _pruned(program: Any) -> Any:
    """Return a program without unread tensors, and without the source lines of each node."""
    for node in program.graph.nodes:
        for what in ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "from_node"):
            node.meta.pop(what, None)
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    names = program.graph_signature.inputs_to_parameters | program.graph_signature.inputs_to_buffers
    for name in set(program.state_dict) - {name for put, name in names.items() if put in used}:
        tensor = program.state_dict[name]
        nothing = tensor.detach().new_zeros(()).expand(tensor.shape)
        parameter = isinstance(tensor, nn.Parameter)
        program.state_dict[name] = nn.Parameter(nothing, False) if parameter else nothing
    return program


def read(file: Path) -> Run:
    """Return how torch runs a program."""
    program: Any = torch.export.load(file).module()
    return lambda batch: Answer(tensors(call(program, batch)), [])


@export_format("pt2", read=read, suffix=".pt2", hardware=False)
def write(request: Request, file: Path) -> Foreign:
    """torch.export: a program for any machine with torch, and with no need of onespike."""
    network, batch = bare(request.network), example(request.batches)
    # a first run settles what depends on the size of the input
    sites = [site for site, _ in reference(network, batch)[1].counts]
    graph = trace(Plain(network), batch)
    # the same with the counts of every site as further outputs
    probed: Any = trace(Recorded(network), batch).program.module()

    def probe(batch: Any) -> Answer:
        output, counts = call(probed, batch)
        return Answer(tensors(output), list(zip(sites, counts, strict=True)))

    facts = json.dumps(dict(request.facts), ensure_ascii=False)
    with warnings.catch_warnings(action="ignore"):  # about unread tensors, of which one number is kept
        torch.export.save(_pruned(graph.program), contents := io.BytesIO(), extra_files={FACTS: facts})
    file.write_bytes(contents.getbuffer())  # torch's own writer ends the process where a disk is full
    return Foreign(f"torch {torch.__version__}", probe, graph.notes)
