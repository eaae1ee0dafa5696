"""Run a folder of `onespike export --format integers` in plain NumPy and compare every spike: python … FOLDER."""

# fmt: off
# ruff: noqa: B905, BLE001, E401, E731, I001, RUF007
import hashlib, json, math, sys
from pathlib import Path
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from safetensors.numpy import load_file
given = lambda value, other: other if value is None else value
def row_gain(x, typical, center, gain):
    ratio = np.abs(x - given(center, 0)).mean(-1, keepdims=True) * (2**0.5 / typical)
    return 2.0 ** np.floor(np.log2(np.clip(ratio, 2.0**-1, 2.0**14))) * given(gain, 1)
def fire(x, positive, negative, center, gain, sides, levels, bounds, site):  # a side that is off has an infinite step
    x = (x - given(center, 0)) / given(gain, 1)
    size = np.maximum(x, 0) / positive + np.maximum(-x, 0) / negative + 0.5
    return np.asarray((0.0, *levels))[np.searchsorted(bounds, size, side="right")] * np.sign(x)
def decode(counts, positive, negative, gain, offset, sides, site):
    return counts * np.where(counts > 0, positive, negative) * given(gain, 1) + given(offset, 0)

def times(counts, up, down, shape):  # counts of each sign in common units, whole numbers
    return counts if up is None else counts * np.where(counts > 0, up.reshape(shape), down.reshape(shape))
def linear_sums(counts, weight, up, down, most, signed, site):
    return times(counts, up, down, -1) @ weight.T.astype(float)  # whole numbers below 2**31: exact in any order
def spiking_linear(counts, weight, scale, bias, up, down, gain, *facts):
    return linear_sums(counts, weight, up, down, *facts) * scale * given(gain, 1) + given(bias, 0)
def conv_sums(counts, weight, up, down, stride, padding, dilation, groups, most, signed, site):
    rows = (-1, *[1] * (weight.ndim - 2))
    return convolve(times(counts, up, down, rows), weight.astype(float), None, stride, padding, dilation, groups)
def spiking_conv(counts, weight, scale, bias, up, down, *facts):
    rows = (-1, *[1] * (weight.ndim - 2))
    sums = conv_sums(counts, weight, up, down, *facts)
    return sums * scale.reshape(rows) + (0 if bias is None else bias if bias.ndim > 1 else bias.reshape(rows))
def compare(x, thresholds, sign, values, fraction, site):
    whole = x * given(sign, 1) * 2.0**fraction
    return sum(((whole >= thresholds[..., i]) * (b - a) for i, (a, b) in enumerate(zip(values, values[1:]))), values[0] + 0 * whole)

def windows(x, kernel, stride, padding, dilation, fill):  # [batch, channels, …places, …kernel]
    geometry, dims = (stride or kernel, padding or [0], dilation or [1]), len(kernel)
    stride, padding, dilation = (list(v) * dims if len(v) == 1 else v for v in geometry)
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    seen = sliding_window_view(x, [d * (k - 1) + 1 for d, k in zip(dilation, kernel)], range(2, 2 + dims))
    return seen[(slice(None), slice(None), *(slice(None, None, s) for s in (*stride, *dilation)))]
def convolve(x, weight, bias=None, stride=(1,), padding=(0,), dilation=(1,), groups=1):
    parts, dims = [], weight.ndim - 2
    for a, w in zip(np.split(x, groups, 1), np.split(weight, groups)):
        seen, axes = windows(a, w.shape[2:], stride, padding, dilation, 0), range(2 + dims, 2 + 2 * dims)
        parts.append(np.moveaxis(np.tensordot(seen, w, ((1, *axes), range(1, 2 + dims))), -1, 1))
    return np.concatenate(parts, 1) + (0 if bias is None else bias.reshape(-1, *[1] * dims))
def softmax(x, axis, *_):  # a row of −∞ gives zeros
    e = np.exp(x - np.maximum(x.max(axis, keepdims=True), -1e300))
    return e / np.maximum(e.sum(axis, keepdims=True), 1e-300)
def layer_norm(x, shape, weight=None, bias=None, eps=1e-5, *_):
    axes = tuple(range(-len(shape), 0))
    x = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    return x * given(weight, 1) + given(bias, 0)
def gelu(x, approximate="none"):
    tanh, erf = lambda x: np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), np.vectorize(math.erf, otypes=[float])
    return x * (1 + (tanh(x) if approximate == "tanh" else erf(x / math.sqrt(2)))) / 2

OPS = {
    "spikes.fire": fire, "spikes.decode": decode, "spikes.linear": spiking_linear, "spikes.conv": spiking_conv,
    "spikes.row_gain": row_gain, "spikes.compare": compare, "spikes.linear_sums": linear_sums, "spikes.conv_sums": conv_sums,
    "log_softmax": lambda x, axis, *_: (x := x - x.max(axis, keepdims=True)) - np.log(np.exp(x).sum(axis, keepdims=True)),
    "conv1d": convolve, "conv2d": convolve, "softmax": softmax, "_safe_softmax": softmax,
    "gelu": gelu, "layer_norm": layer_norm, "view": np.reshape, "getitem": lambda x, i: x[i], "unsqueeze": np.expand_dims,
    "linear": lambda x, w, b=None: x @ w.T + given(b, 0), "relu": lambda x: np.maximum(x, 0), "rsqrt": lambda x: x**-0.5,
    "silu": lambda x: x / (1 + np.exp(-x)), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "embedding": lambda w, i, *_: w[i],
    "softplus": lambda x: np.logaddexp(x, 0), "mean": lambda x, axis, keep=False: x.mean(tuple(axis), keepdims=keep),
    "max_pool2d": lambda x, k, *rest: windows(x, k, *(*rest, None, None, None)[:3], -np.inf).max((-2, -1)),
    "clamp": np.clip, "adaptive_avg_pool2d": lambda x, size: x.mean((2, 3), keepdims=True),
    "upsample_nearest2d": lambda x, size, factors: x.repeat(int(factors[0]), 2).repeat(int(factors[1]), 3),
    "slice": lambda x, axis=0, *ends: x[(slice(None),) * (axis % x.ndim) + (slice(*(ends or (None,))),)],
    "select": lambda x, axis, i: np.take(x, i, axis), "unbind": lambda x, axis=0: list(np.moveaxis(x, axis, 0)),
    "flatten": lambda x, first=0, last=-1: x.reshape(*x.shape[:first], -1, *x.shape[last % x.ndim + 1 :]),
    "unflatten": lambda x, axis, sizes: x.reshape(*x.shape[: axis % x.ndim], *sizes, *x.shape[axis % x.ndim + 1 :]),
    "expand": lambda x, to, *_: np.broadcast_to(x, [x.shape[i - len(to)] if n == -1 else n for i, n in enumerate(to)]),
    "index": lambda x, at: x[tuple(at)], "sym_size": lambda x, axis: x.shape[axis], "to": np.asarray,
    "masked_fill": lambda x, at, v: np.where(at, v, x), "new_ones": lambda x, shape, dtype="float": np.ones(shape, dtype),
    "gather": lambda x, axis, at: np.take_along_axis(x, at, axis), "cat": np.concatenate,
    "split": lambda x, size, axis=0: np.split(x, range(size, x.shape[axis], size), axis),
    "topk": lambda x, k, *_: (-np.sort(-x)[..., :k], np.argsort(-x, kind="stable")[..., :k]),
}
EXACT = [f"spikes.{name}" for name in ("fire", "compare", "decode", "linear_sums", "conv_sums", "row_gain")]
NAMES = dict(mul="multiply", div="divide", sub="subtract", neg="negative", transpose="swapaxes", permute="transpose",
             le="less_equal", ne="not_equal", eq="equal", __and__="logical_and", floordiv="floor_divide", pow="power",
             lt="less", ge="greater_equal", gt="greater", **{name: name for name in (
                 "all", "any", "arange", "cumsum", "diff", "full", "reshape", "roll", "squeeze", "stack", "sum", "where")})
KNOWN = {n: f for n, f in vars(np).items() if isinstance(f, np.ufunc)} | {n: getattr(np, f) for n, f in NAMES.items()} | OPS
def checked(folder):  # the record holds its own SHA-256 and those of the files beside it
    record, digest = json.loads((folder / "network.json").read_text("utf-8")), lambda data: hashlib.sha256(data).hexdigest()
    files = {name: digest((folder / name).read_bytes()) for name in record["files"]}
    if record.pop("sha256") != digest(json.dumps(record, sort_keys=True).encode()) or files != record["files"]:
        raise ValueError("it is not what was exported: a SHA-256 differs")
    return record
def read(value, values):
    if isinstance(value, dict):
        return values[value["value"]] if "value" in value else float(value["number"])
    return [read(v, values) for v in value] if isinstance(value, list) else value
def replay(folder):
    record, golden = checked(folder), load_file(folder / "golden.safetensors")
    values = load_file(folder / "network.safetensors") | {n: golden[f"input.{n}"] for n in record["inputs"]}
    values = {n: v.astype(float) if v.dtype == np.float32 else v for n, v in values.items()}
    for node in record["nodes"]:
        name = node["op"] if node["op"] in OPS else node["op"].removeprefix("aten.").split(".")[0]
        kwargs = {k: read(v, values) for k, v in node["kwargs"].items()}
        value = KNOWN[name](*read(node["args"], values), **kwargs)
        if name not in EXACT and isinstance(value, np.ndarray) and value.dtype == float:  # fixed point
            value = np.round(value * 2.0 ** record["fraction"]) / 2.0 ** record["fraction"]
        values[node["name"]] = value
    compared = differ = 0
    for name, site in record["sites"].items():
        expected = np.zeros(site["shape"], int)
        expected.flat[golden[f"neurons.{name}"]] = golden[f"counts.{name}"]
        compared, differ = compared + expected.size, differ + int((values[site["fires"]] != expected).sum())
    return compared, differ, max(np.abs(values[v] - golden[f"output.{n}"]).max() for n, v in record["outputs"].items())

if __name__ == "__main__":
    try:
        print("{} counts compared, {} differ; outputs differ by at most {:.2g}".format(*replay(Path(sys.argv[1]))))
    except Exception as error:  # damage of any kind is one line
        print(f"{sys.argv[1]}: it cannot be replayed ({error!r:.200}). Export it again.", file=sys.stderr)
        sys.exit(2)
