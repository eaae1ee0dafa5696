"""Run an exported chain on lava's simulation of Loihi 2, with graded spikes, and compare every count: python … FOLDER.

FOLDER is the export `integers` of convolutions and linear maps with functions of single elements. Loihi 2 has 8-bit weights that are even
where signs are mixed: these are 2·Ŵ, and thresholds 2·T, so that nothing is rounded. Needs lava-nc 0.10.0 (Python 3.10) and safetensors.
lava imports all modules beside this file in search of models, so that it has a folder of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from lava.magma.core.decorator import implements, requires, tag
from lava.magma.core.model.py.model import PyLoihiProcessModel
from lava.magma.core.model.py.ports import PyInPort, PyOutPort
from lava.magma.core.model.py.type import LavaPyType
from lava.magma.core.process.ports.ports import InPort, OutPort
from lava.magma.core.process.process import AbstractProcess
from lava.magma.core.process.variable import Var
from lava.magma.core.resources import CPU
from lava.magma.core.run_conditions import RunSteps
from lava.magma.core.run_configs import Loihi2SimCfg
from lava.magma.core.sync.protocols.loihi_protocol import LoihiProtocol
from lava.proc.dense.process import Dense
from lava.proc.io.source import RingBuffer
from safetensors.numpy import load_file

ACCUMULATOR, PAYLOAD = 2**23, 2**8
"""Bounds of a sum of 24 bits and of a graded spike of 8."""


class Comparator(AbstractProcess):
    """Neurons that fire least + the steps whose thresholds their sum has reached, and keep nothing."""

    def __init__(self, thresholds: Any, values: Any) -> None:
        size = len(thresholds)
        super().__init__(shape=(size,))
        self.a_in, self.s_out = InPort(shape=(size,)), OutPort(shape=(size,))
        self.thresholds = Var(shape=thresholds.shape, init=thresholds)
        self.values = Var(shape=(len(values),), init=np.array(values))
        self.sums, self.counts = Var(shape=(size,), init=0), Var(shape=(size,), init=0)


@implements(proc=Comparator, protocol=LoihiProtocol)
@requires(CPU)
@tag("fixed_pt")
class ComparatorModel(PyLoihiProcessModel):
    a_in: PyInPort = LavaPyType(PyInPort.VEC_DENSE, np.int32, precision=24)
    s_out: PyOutPort = LavaPyType(PyOutPort.VEC_DENSE, np.int32, precision=24)
    thresholds: np.ndarray = LavaPyType(np.ndarray, np.int64)
    values: np.ndarray = LavaPyType(np.ndarray, np.int32)
    sums: np.ndarray = LavaPyType(np.ndarray, np.int32)
    counts: np.ndarray = LavaPyType(np.ndarray, np.int32)

    def run_spk(self) -> None:
        self.sums = self.a_in.recv()
        steps = np.diff(self.values)
        self.counts = (self.values[0] + (self.sums[:, None] >= self.thresholds) @ steps).astype(np.int32)
        self.s_out.send(self.counts)


def matrix(
    weight: Any, shape: tuple[int, ...], stride: list[int], padding: list[int]
) -> tuple[Any, tuple[int, ...]]:
    """Return a convolution of images of this shape as a matrix, and the shape of its result."""
    _, high, wide = shape
    places = np.pad(
        np.arange(np.prod(shape)).reshape(shape), [(0, 0), *((p, p) for p in padding)], constant_values=-1
    )
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip((high, wide), padding, weight.shape[2:], stride)]  # noqa: B905
    made = np.zeros(
        (len(weight), *size, np.prod(shape) + 1), weight.dtype
    )  # the last column takes what is padded
    for y, x in np.ndindex(*size):
        rows, columns = (slice(at * s, at * s + k) for at, s, k in zip((y, x), stride, weight.shape[2:]))  # noqa: B905
        made[:, y, x, places[:, rows, columns].ravel()] += weight.reshape(len(weight), -1)
    return made.reshape(-1, made.shape[-1])[:, :-1], (len(weight), *size)


def chain(
    record: dict[str, Any], held: dict[str, Any], shape: tuple[int, ...]
) -> list[tuple[Any, Any, Any, Any]]:
    """Return products and what reads them: weight, thresholds, values and site; the last has sums alone."""
    made, weight, before = list[Any](), None, record["inputs"][0]
    for node in record["nodes"]:
        op, args = node["op"], dict(node["args"])
        if op.startswith(("aten.sym_size", "mul")):
            continue
        source = next(args.pop(name) for name in ("x", "counts", "self", "input") if name in args)
        if source != {"value": before}:
            raise SystemExit(f"{node['name']}: a branch ({op}) is not in this example, which runs chains.")
        before, plain = node["name"], all(args.get(name) is None for name in ("up", "down", "gain", "sign"))
        args = {name: held.get(a["value"]) if isinstance(a, dict) else a for name, a in args.items()}
        if op == "spikes.conv_sums" and plain and args["groups"] == 1 and args["dilation"] == [1, 1]:
            weight, shape = matrix(args["weight"].astype(np.int32), shape, args["stride"], args["padding"])
        elif op in ("spikes.linear_sums", "spikes.linear") and plain:
            weight = args["weight"].astype(np.int32)
            if op == "spikes.linear":
                made.append((weight, np.zeros((len(weight), 1)), [0, 0], None))
        elif (
            op == "spikes.compare"
            and plain
            and (weight is None or record["sites"][args["site"]]["fraction"] == 0)
        ):
            site, rows = record["sites"][args["site"]], args["rows"]
            cuts = args["thresholds"] if rows is None else args["thresholds"][rows]
            if weight is not None:
                wide = np.broadcast_to(cuts, (1, *site["shape"][1:], cuts.shape[-1]))[0]
                made.append((weight, wide, site["values"], args["site"]))
        elif not op.startswith(("aten.view", "aten.reshape", "aten.flatten")):
            raise SystemExit(f"{node['name']}: this form of {op} is not in this example.")
    return made


def events(golden: dict[str, Any], site: str, shape: list[int]) -> Any:
    """Return the golden counts of a site, [inputs, neurons]."""
    counts = np.zeros(shape, np.int32)
    counts.flat[golden[f"neurons.{site}"]] = golden[f"counts.{site}"]
    return counts.reshape(shape[0], -1)


def main(folder: Path) -> tuple[int, int, int]:
    """Return how many counts were compared, how many differ, and how many answers."""
    record, golden = (
        json.loads((folder / "network.json").read_text()),
        load_file(folder / "golden.safetensors"),
    )
    held, sites = load_file(folder / "network.safetensors"), record["sites"]
    first = next(iter(sites))  # the host codes the network's input
    layers = chain(record, held, tuple(sites[first]["shape"][1:]))
    coded, steps = events(golden, first, sites[first]["shape"]), 2 * len(layers) + 2
    largest = max(sites[first]["levels"])

    source = RingBuffer(data=np.repeat(coded.T, steps, 1))
    port, neurons = source.s_out, list[Any]()
    for weight, thresholds, values, site in layers:
        if largest >= PAYLOAD or 2 * largest * int(np.abs(weight).sum(1).max()) >= ACCUMULATOR:
            raise SystemExit(f"{site or 'the output'}: graded spikes have 8 bits, and sums 24.")
        largest = max(map(abs, values))
        dense = Dense(weights=2 * weight, num_message_bits=8)
        neuron = Comparator(2 * thresholds.reshape(len(weight), -1).astype(np.int64), values)
        port.connect(dense.s_in)
        dense.a_out.connect(neuron.a_in)
        port = neuron.s_out
        neurons.append((site, neuron))

    compared = differ = answers = 0
    final = next(node for node in record["nodes"] if node["op"] == "spikes.linear")
    scale, bias = (held[final["args"][name]["value"]] for name in ("scale", "bias"))
    output = golden[f"output.{next(iter(record['outputs']))}"]
    for image in range(len(coded)):
        source.run(condition=RunSteps(steps), run_cfg=Loihi2SimCfg(select_tag="fixed_pt"))
        for site, neuron in neurons:
            if site is None:
                logits = neuron.sums.get() / 2 * scale + bias
                answers += int(logits.argmax() != output[image].argmax())
                continue
            expected = events(golden, site, sites[site]["shape"])[image]
            compared, differ = compared + expected.size, differ + int((neuron.counts.get() != expected).sum())
    source.stop()
    return compared, differ, answers


if __name__ == "__main__":
    print("{} counts compared, {} differ; {} answers differ".format(*main(Path(sys.argv[1]))))
