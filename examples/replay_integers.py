"""Run a folder of `onespike export --format integers` in plain NumPy and compare every spike: python … FOLDER."""

# fmt: off
# ruff: noqa: B905
import json
import math
import sys
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from safetensors.numpy import load_file


def windows(x, kernel, stride, padding, dilation, fill):  # [batch, channels, …places, …kernel]
    dims = len(kernel)
    given = (stride or kernel, padding or [0], dilation or [1])
    stride, padding, dilation = (list(v) * dims if len(v) == 1 else v for v in given)
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    seen = sliding_window_view(x, spans, range(2, 2 + dims))
    return seen[(slice(None), slice(None), *(slice(None, None, s) for s in (*stride, *dilation)))]

def convolve(x, weight, bias=None, stride=(1,), padding=(0,), dilation=(1,), groups=1):
    parts, dims = [], weight.ndim - 2
    for a, w in zip(np.split(x, groups, 1), np.split(weight, groups)):
        seen, axes = windows(a, w.shape[2:], stride, padding, dilation, 0), range(2 + dims, 2 + 2 * dims)
        parts.append(np.moveaxis(np.tensordot(seen, w, ((1, *axes), range(1, 2 + dims))), -1, 1))
    return np.concatenate(parts, 1) + (0 if bias is None else bias.reshape(-1, *[1] * dims))

def fire(x, positive, negative, center, gain, sides, levels, bounds, site):
    x = (x - (0 if center is None else center)) / (1 if gain is None else gain)
    up, down = np.maximum(x, 0) / positive, np.maximum(-x, 0) / negative
    size = {"positive": up, "negative": down, "both": up + down, "even": np.abs(x) / positive}[sides] + 0.5
    return np.asarray((0, *levels))[np.searchsorted(bounds, size, side="right")] * np.sign(x).astype(int)

def decode(counts, positive, negative, gain, offset, sides, site):
    unit = {"positive": positive, "even": positive, "negative": negative}.get(sides)
    value = counts * (np.where(counts > 0, positive, negative) if unit is None else unit)
    return value * (1 if gain is None else gain) + (0 if offset is None else offset)

def units(counts, up, down, shape):
    return counts if up is None else counts * np.where(counts > 0, up.reshape(shape), down.reshape(shape)).astype(int)

def spiking_linear(counts, weight, scale, bias, up, down, gain, most, signed, site):
    sums = units(counts, up, down, -1) @ weight.T.astype(int)  # integers: exact
    return sums * scale * (1 if gain is None else gain) + (0 if bias is None else bias)

def spiking_conv(counts, weight, scale, bias, up, down, stride, padding, dilation, groups, most, signed, site):
    rows = (-1, *[1] * (weight.ndim - 2))
    sums = convolve(units(counts, up, down, rows), weight.astype(int), None, stride, padding, dilation, groups)
    return sums * scale.reshape(rows) + (0 if bias is None else bias if bias.ndim > 1 else bias.reshape(rows))

def softmax(x, axis, *_):  # a row of −∞ gives zeros
    e = np.exp(x - np.maximum(x.max(axis, keepdims=True), -1e300))
    return e / np.maximum(e.sum(axis, keepdims=True), 1e-300)

def layer_norm(x, shape, weight=None, bias=None, eps=1e-5, *_):
    axes = tuple(range(-len(shape), 0))
    x = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    return x * (1 if weight is None else weight) + (0 if bias is None else bias)

def gelu(x, approximate="none"):
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2

def view(x, first, *last):  # reshape(shape) and flatten(start, end)
    shape = first if isinstance(first, list) else (*x.shape[:first], -1, *x.shape[(*last, -1)[0] % x.ndim + 1 :])
    return x.reshape(shape)

def expand(x, shape, *_):
    return np.broadcast_to(x, [x.shape[i - len(shape)] if n == -1 else n for i, n in enumerate(shape)])

def pool(x, kernel, stride=None, padding=None, dilation=None, *_):
    return windows(x, kernel, stride, padding, dilation, -np.inf).max(tuple(range(-len(kernel), 0)))

KINDS = {"float": float, "int": int, "bool": bool}
OPS = {
    "spikes.fire": fire, "spikes.decode": decode, "spikes.linear": spiking_linear, "spikes.conv": spiking_conv,
    "conv1d": convolve, "conv2d": convolve, "softmax": softmax, "_safe_softmax": softmax, "gelu": gelu,
    "layer_norm": layer_norm, "view": view, "reshape": view, "flatten": view, "expand": expand, "max_pool2d": pool,
    "linear": lambda x, w, b=None: x @ w.T + (0 if b is None else b), "relu": lambda x: np.maximum(x, 0),
    "relu_": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)), "rsqrt": lambda x: x**-0.5,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "mean": lambda x, axis, keep=False: x.mean(tuple(axis), keepdims=keep),
    "adaptive_avg_pool2d": lambda x, size: x.mean((2, 3), keepdims=True), "getitem": lambda x, i: x[i],
    "slice": lambda x, axis=0, *ends: x[(slice(None),) * (axis % x.ndim) + (slice(*(ends or (None,))),)],
    "select": lambda x, axis, i: np.take(x, i, axis), "unbind": lambda x, axis=0: list(np.moveaxis(x, axis, 0)),
    "unflatten": lambda x, axis, sizes: x.reshape(*x.shape[: axis % x.ndim], *sizes, *x.shape[axis % x.ndim + 1 :]),
    "embedding": lambda w, i, *_: w[i], "index": lambda x, at: x[tuple(at)], "sym_size": lambda x, axis: x.shape[axis],
    "to": lambda x, kind: np.asarray(x).astype(KINDS[kind]), "masked_fill": lambda x, at, v: np.where(at, v, x),
    "new_ones": lambda x, shape, dtype="float": np.ones(shape, KINDS[dtype]), "unsqueeze": np.expand_dims,
    "split": lambda x, size, axis=0: np.split(x, range(size, x.shape[axis], size), axis), "squeeze": np.squeeze,
}
SAME = dict(mul="multiply", div="divide", sub="subtract", neg="negative", pow="power", transpose="swapaxes", ne="not_equal",
            permute="transpose", cat="concatenate", eq="equal", le="less_equal", __and__="logical_and",
            bitwise_not="logical_not", floordiv="floor_divide")

def read(value, values):
    if isinstance(value, dict):
        return values[value["value"]] if "value" in value else float(value["number"])
    return [read(v, values) for v in value] if isinstance(value, list) else value

def replay(folder):
    record, golden = json.loads((folder / "network.json").read_text("utf-8")), load_file(folder / "golden.safetensors")
    values = load_file(folder / "network.safetensors") | {n: golden[f"input.{n}"] for n in record["inputs"]}
    values = {n: v.astype(float) if v.dtype == np.float32 else v for n, v in values.items()}
    for node in record["nodes"]:
        name = node["op"] if node["op"] in OPS else node["op"].removeprefix("aten.").split(".")[0]
        run = OPS.get(name) or getattr(np, SAME.get(name, name))
        values[node["name"]] = run(*read(node["args"], values), **{k: read(v, values) for k, v in node["kwargs"].items()})
    compared = differ = 0
    for name, site in record["sites"].items():
        expected = np.zeros(site["shape"], int)
        expected.flat[golden[f"neurons.{name}"]] = golden[f"counts.{name}"]
        compared, differ = compared + expected.size, differ + int((values[site["fires"]] != expected).sum())
    return compared, differ, max(np.abs(values[v] - golden[f"output.{n}"]).max() for n, v in record["outputs"].items())

if __name__ == "__main__":
    print("{} counts compared, {} differ; outputs differ by at most {:.2g}".format(*replay(Path(sys.argv[1]))))
