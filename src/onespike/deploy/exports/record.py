"""The record of `integers`, `network.json`: what a node, a site and the network say, and the JSON schema of all that."""

from dataclasses import dataclass
from typing import Any

import torch

from onespike.deploy.exports import operations as operations  # registers them

OPERATIONS = tuple(
    f"spikes.{name}"
    for name in ("row_gain", "fire", "decode", "compare", "linear", "linear_sums", "conv", "conv_sums", "matmul", "matmul_sums")
)  # fmt: skip
VALUE = "value"
"""An argument {"value": NAME} is the result of a node, an input or a tensor of that name."""
FROM_SITE = {"spikes.fire": ("sides", "levels", "bounds"), "spikes.compare": ("values", "fraction")}
"""Operation → the arguments that the record of its site holds, so that levels are stored once."""


@dataclass(frozen=True)
class NodeRecord:
    """One operation with its arguments by name: `spikes.…` as the documentation defines it, `aten.…` as torch does, or one
    of Python's operators on `a` and `b`. Arguments of `aten` with their default are left out.
    """

    name: str
    op: str
    args: dict[str, Any]


@dataclass(frozen=True)
class SiteRecord:
    """What is at a site. Names are those of tensors; null is nothing. What else is here are arguments of its operations.

    Attributes:
        fires: the node whose result is its counts.
        levels: the magnitudes that it may send.
        bounds: where they begin, in |x − center| / (gain·step) + ½.
        steps: of the positive and the negative side.
        units: what one spike is worth; 0 where a channel is off.
        thresholds: null where `fires` scales and rounds; all functions before a site are folded in.
        values: the counts between thresholds: values[number of thresholds ≤ integer].
        fraction: the bits behind the point of these integers; 0 for sums of a product.
        shape: of the counts on the golden inputs.
    """

    fires: str
    sides: str
    levels: list[int]
    bounds: list[float]
    steps: list[str]
    units: list[str]
    center: str | None
    gain: str | None
    offset: str | None
    typical: str | None
    thresholds: str | None
    rows: str | None
    values: list[int]
    sign: str | None
    fraction: int
    shape: list[int]


@dataclass(frozen=True)
class NetworkRecord:
    """The whole of `network.json`.

    Attributes:
        fraction: results that are not integers are rounded to multiples of 2^−fraction.
        files: the SHA-256 of every other file.
        sha256: of this record without it, as JSON with sorted keys.
    """

    format: str
    version: int
    inputs: list[str]
    outputs: dict[str, str]
    fraction: int
    sites: dict[str, SiteRecord]
    nodes: list[NodeRecord]
    facts: dict[str, Any]
    files: dict[str, str]
    sha256: str


MEANINGS = {
    "x": "what is compared, fired or measured",
    "counts": "signed counts of a site",
    "site": "the site whose counts are fired, decoded or multiplied",
    "weight": "8-bit integers [outputs, inputs of a group, …places of the kernel]",
    "scale": "what a unit of the sums is worth: one number for each output",
    "bias": "one number for each output; [outputs, …places] where an offset meets the zeros around an image, so that it "
    "differs by pixel",
    "up": "units of a positive count, whole numbers: one, or one for each input channel; null for 1",
    "down": "units of a negative count, likewise",
    "stride": "steps of the kernel, one for each axis of the image",
    "padding": "counts of 0 around the image, as many before as behind, one number for each axis",
    "dilation": "distance of neighbors in the kernel, one for each axis",
    "groups": "into how many groups channels are cut; output channels of a group see its input channels alone",
    "most": "no unit is larger",
    "signed": "whether units may be negative",
    "lhs": "signed counts, one row for each result",
    "rhs": "signed counts, one column for each result",
    "lhs_unit": "what a unit of lhs is worth",
    "rhs_unit": "what a unit of rhs is worth",
    "lhs_gain": "powers of two by which the units of a row of lhs are larger; null for 1",
    "rhs_gain": "powers of two by which the units of rhs are larger, along the sum or by column; null for 1",
    "lhs_most": "no unit of lhs is larger",
    "rhs_most": "no unit of rhs is larger, times its gain over the smallest",
    "lhs_signed": "whether units of lhs may be negative",
    "rhs_signed": "whether units of rhs may be negative",
    "positive": "θ⁺: the step of positive counts, infinite where that side is off; in decode their value, and 0 there",
    "negative": "θ⁻ of negative counts, likewise",
    "center": "what is subtracted first; null for 0",
    "gain": "powers of two by which the steps of a row are larger; null for 1",
    "offset": "what is added to values; null for 0",
    "typical": "the mean |x − center| of a usual row, where `spikes.row_gain` multiplies the gain of each row",
    "sides": "which signs fire: `even`, `both`, `positive` or `negative`",
    "thresholds": "ascending integers [.., cuts] for the shape of x, or [rows, cuts]",
    "rows": "for each neuron its row of thresholds; null where these have the shape of x",
    "sign": "−1 where x is negated first; null for nowhere",
}
TYPES: dict[str, dict[str, Any]] = {
    "Tensor": {"$ref": "#/$defs/Value"},
    "Optional[Tensor]": {"anyOf": [{"$ref": "#/$defs/Value"}, {"type": "null"}]},
    "List[int]": {"type": "array", "items": {"type": "integer"}},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
}


def schema() -> dict[str, Any]:
    """Return the JSON schema of `network.json`, with the arguments of every operation of our own."""
    from pydantic import TypeAdapter

    whole = TypeAdapter(NetworkRecord).json_schema()
    whole["$defs"]["Value"] = {
        "description": "A tensor, an input or the result of a node.",
        "type": "object",
        "properties": {VALUE: {"type": "string"}},
        "required": [VALUE],
    }
    whole["$defs"]["NodeRecord"]["allOf"] = [
        {"if": {"properties": {"op": {"const": op}}}, "then": {"properties": {"args": _arguments(op)}}}
        for op in OPERATIONS
    ]
    for name, of_site in whole["$defs"]["SiteRecord"]["properties"].items():
        of_site |= {"description": MEANINGS[name]} if name in MEANINGS else {}
    return whole


def _arguments(op: str) -> dict[str, Any]:
    """Return the schema of the arguments of one operation."""
    operation = getattr(torch.ops.spikes, op.removeprefix("spikes.")).default
    named = {argument.name: str(argument.type) for argument in operation._schema.arguments}
    named = {name: kind for name, kind in named.items() if name not in FROM_SITE.get(op, ())}
    return {
        "properties": {name: {**TYPES[kind], "description": MEANINGS[name]} for name, kind in named.items()},
        "required": list(named),
        "additionalProperties": False,
    }
