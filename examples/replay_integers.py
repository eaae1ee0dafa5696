"""Run a folder of `onespike export --format integers` in plain NumPy and compare every spike: python … FOLDER."""

# fmt: off
# ruff: noqa: B905, BLE001, E401, E731, I001
import hashlib, json, math, sys
from pathlib import Path
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from safetensors.numpy import load_file
given = lambda value, other: other if value is None else value

# What sites do. Arguments have the names of the record; schema.json says what they are.
def row_gain(x, typical, center, gain):
    ratio = np.abs(x - given(center, 0)).mean(-1, keepdims=True) * (2**0.5 / typical)
    return 2.0 ** np.floor(np.log2(np.clip(ratio, 2.0**-1, 2.0**14))) * given(gain, 1)
def fire(x, positive, negative, center, gain, sides, levels, bounds, site):  # a side that is off has an infinite step
    x = (x - given(center, 0)) / given(gain, 1)
    size = np.maximum(x, 0) / positive + np.maximum(-x, 0) / negative + 0.5
    return np.asarray((0.0, *levels))[np.searchsorted(bounds, size, side="right")] * np.sign(x)
def decode(counts, positive, negative, gain, offset, sides, site):
    return counts * np.where(counts > 0, positive, negative) * given(gain, 1) + given(offset, 0)
def compare(x, thresholds, rows, sign, values, fraction, site):
    whole, cuts = x * given(sign, 1) * 2.0**fraction, np.moveaxis(thresholds, -1, 0)  # a neuron has its row, where there are rows
    reached = ((whole >= (cut if rows is None else cut[rows])) * (b - a) for cut, a, b in zip(cuts, values, values[1:]))
    return sum(reached, values[0] + 0 * whole)
def times(counts, up, down, shape):  # counts of each sign in common units, whole numbers
    return counts if up is None else counts * np.where(counts > 0, up.reshape(shape), down.reshape(shape))
def linear_sums(counts, weight, up, down, most, signed, site):
    return times(counts, up, down, -1) @ weight.T.astype(float)  # whole numbers below 2**31: exact in any order
def spiking_linear(scale, bias, gain, **rest):
    return linear_sums(**rest) * scale * given(gain, 1) + given(bias, 0)
def conv_sums(counts, weight, up, down, stride, padding, dilation, groups, most, signed, site):
    rows = (-1, *[1] * (weight.ndim - 2))
    return convolve(times(counts, up, down, rows), weight.astype(float), None, stride, padding, dilation, groups)
def spiking_conv(weight, scale, bias, **rest):
    rows = (-1, *[1] * (weight.ndim - 2))
    return conv_sums(weight=weight, **rest) * scale.reshape(rows) + (0 if bias is None else bias if bias.ndim > 1 else bias.reshape(rows))
least = lambda gain: gain.min(-2, keepdims=True) if gain.ndim > 1 else gain  # of gains along the sum
def matmul_sums(lhs, rhs, rhs_gain, lhs_most, rhs_most, lhs_signed, rhs_signed, site):
    return lhs @ (rhs if rhs_gain is None else rhs * (rhs_gain / least(rhs_gain)))
def spiking_matmul(lhs, rhs, lhs_unit, rhs_unit, lhs_gain, rhs_gain, **rest):
    value = matmul_sums(lhs, rhs, rhs_gain, **rest) * lhs_unit * rhs_unit * given(lhs_gain, 1)
    return value if rhs_gain is None else value * least(rhs_gain)

def windows(x, kernel, stride, padding, dilation, fill, ceil_mode=False):  # [batch, channels, …places, …kernel]
    geometry, dims = (kernel, stride or kernel, padding, dilation), x.ndim - 2
    kernel, stride, padding, dilation = ([v] * dims if isinstance(v, int) else list(v) * dims if len(v) == 1 else v for v in geometry)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    more = [-(n + 2 * p - k) % s if ceil_mode else 0 for n, p, k, s in zip(x.shape[2:], padding, spans, stride)]
    x = np.pad(x, [(0, 0), (0, 0), *((p, p + m) for p, m in zip(padding, more))], constant_values=fill)
    seen = sliding_window_view(x, spans, range(2, 2 + dims))
    return seen[(slice(None), slice(None), *(slice(None, None, s) for s in (*stride, *dilation)))]
def convolve(input, weight, bias=None, stride=(1,), padding=(0,), dilation=(1,), groups=1):
    parts, dims = [], weight.ndim - 2
    if isinstance(padding, str):
        spans = [0 if padding == "valid" else d * (k - 1) for d, k in zip(list(dilation) * dims, weight.shape[2:])]
        input, padding = np.pad(input, [(0, 0), (0, 0), *((n // 2, n - n // 2) for n in spans)]), (0,)
    for a, w in zip(np.split(input, groups, 1), np.split(weight, groups)):
        seen, axes = windows(a, w.shape[2:], stride, padding, dilation, 0), range(2 + dims, 2 + 2 * dims)
        parts.append(np.moveaxis(np.tensordot(seen, w, ((1, *axes), range(1, 2 + dims))), -1, 1))
    return np.concatenate(parts, 1) + (0 if bias is None else bias.reshape(-1, *[1] * dims))
def convolve_back(input, weight, bias=None, stride=(1,), padding=(0,), output_padding=(0,), groups=1, dilation=(1,)):
    dims, kernel = weight.ndim - 2, weight.shape[2:]
    stride, padding, more, dilation = (list(v) * dims if len(v) == 1 else v for v in (stride, padding, output_padding, dilation))
    apart = np.zeros([*input.shape[:2], *((n - 1) * s + 1 for n, s in zip(input.shape[2:], stride))])
    apart[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = input
    sides = [(d * (k - 1) - p, d * (k - 1) - p + m) for d, k, p, m in zip(dilation, kernel, padding, more)]
    apart = np.pad(apart, [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in sides)])
    apart = apart[(slice(None), slice(None), *(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(sides, apart.shape[2:])))]
    turned = np.flip(weight, range(2, 2 + dims)).reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(-1, weight.shape[0] // groups, *kernel)
    return convolve(apart, turned, bias, dilation=dilation, groups=groups)
def max_pool(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    seen = windows(self, kernel_size, stride, padding, dilation, -np.inf, ceil_mode)
    return seen.max(tuple(range(self.ndim, seen.ndim)))
def avg_pool(self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    if ceil_mode:
        raise ValueError("average pools with ceil_mode are not in this script")
    pooled = lambda x: (seen := windows(x, kernel_size, stride, padding, 1, 0)).sum(tuple(range(self.ndim, seen.ndim)))
    return pooled(self) / (given(divisor_override, pooled(np.ones_like(self)) if not count_include_pad else windows(self, kernel_size, stride, padding, 1, 0)[(0,) * self.ndim].size))
def adaptive_avg_pool(self, output_size):  # windows of different sizes, as torch cuts them
    for axis, out in enumerate(output_size, 2):
        size = self.shape[axis]
        cuts = [np.arange(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
        self = np.stack([np.take(self, cut, axis).mean(axis) for cut in cuts], axis)
    return self
def softmax(self, dim, dtype=None):  # a row of −∞ gives zeros
    e = np.exp(self - np.maximum(self.max(dim, keepdims=True), -1e300))
    return e / np.maximum(e.sum(dim, keepdims=True), 1e-300)
def log_softmax(self, dim, dtype=None):
    self = self - self.max(dim, keepdims=True)
    return self - np.log(np.exp(self).sum(dim, keepdims=True))
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    axes = tuple(range(-len(normalized_shape), 0))
    x = (input - input.mean(axes, keepdims=True)) / np.sqrt(input.var(axes, keepdims=True) + eps)
    return x * given(weight, 1) + given(bias, 0)
def rms_norm(input, normalized_shape, weight=None, eps=None):
    axes = tuple(range(-len(normalized_shape), 0))
    return input / np.sqrt((input**2).mean(axes, keepdims=True) + given(eps, 2.0**-23)) * given(weight, 1)
def batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    rows = lambda x, other: other if x is None else x.reshape(-1, *[1] * (input.ndim - 2))
    return (input - rows(running_mean, 0)) / np.sqrt(rows(running_var, 1) + eps) * rows(weight, 1) + rows(bias, 0)
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    x, rows = input.reshape(len(input), num_groups, -1), (-1, *[1] * (input.ndim - 2))
    x = ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)).reshape(input.shape)
    return x * (1 if weight is None else weight.reshape(rows)) + (0 if bias is None else bias.reshape(rows))
def gelu(self, approximate="none"):
    tanh, erf = lambda x: np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), np.vectorize(math.erf, otypes=[float])
    return self * (1 + (tanh(self) if approximate == "tanh" else erf(self / math.sqrt(2)))) / 2
def reduced(function):
    return lambda self, dim=None, keepdim=False, dtype=None: function(self, None if not dim and dim != 0 else tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)
def cut(self, dim=0, start=None, end=None, step=1):
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]
def split(self, split_size, dim=0):
    ends = range(split_size, self.shape[dim], split_size) if isinstance(split_size, int) else np.cumsum(split_size)[:-1]
    return np.split(self, ends, dim)
def topk(self, k, dim=-1, largest=True, sorted=True):
    order = np.argsort(-self if largest else self, dim, kind="stable")
    return np.take_along_axis(self, order, dim).take(range(k), dim), order.take(range(k), dim)
def expand(self, size, implicit=False):
    return np.broadcast_to(self, [self.shape[i - len(size)] if n == -1 else n for i, n in enumerate(size)])
sigmoid = lambda self: 1 / (1 + np.exp(-self))
hard = lambda x: np.clip(x + 3, 0, 6) / 6

OPS = {
    "spikes.fire": fire, "spikes.decode": decode, "spikes.linear": spiking_linear, "spikes.conv": spiking_conv,
    "spikes.matmul": spiking_matmul, "spikes.matmul_sums": matmul_sums, "spikes.row_gain": row_gain, "spikes.compare": compare, "spikes.linear_sums": linear_sums, "spikes.conv_sums": conv_sums,
    "conv1d": convolve, "conv2d": convolve, "conv3d": convolve, "conv_transpose1d": convolve_back, "conv_transpose2d": convolve_back,
    "conv_transpose3d": convolve_back, "max_pool1d": max_pool, "max_pool2d": max_pool, "max_pool3d": max_pool, "avg_pool1d": avg_pool,
    "avg_pool2d": avg_pool, "avg_pool3d": avg_pool, "adaptive_avg_pool1d": adaptive_avg_pool, "adaptive_avg_pool2d": adaptive_avg_pool,
    "softmax": softmax, "_safe_softmax": softmax, "log_softmax": log_softmax, "layer_norm": layer_norm, "rms_norm": rms_norm,
    "batch_norm": batch_norm, "group_norm": group_norm, "gelu": gelu, "sigmoid": sigmoid, "silu": lambda self: self * sigmoid(self),
    "linear": lambda input, weight, bias=None: input @ weight.T + given(bias, 0), "relu": lambda self: np.maximum(self, 0),
    "relu6": lambda self: np.clip(self, 0, 6), "hardtanh": lambda self, min_val=-1, max_val=1: np.clip(self, min_val, max_val),
    "hardsigmoid": hard, "hardswish": lambda self: self * hard(self), "mish": lambda self: self * np.tanh(np.logaddexp(self, 0)),
    "elu": lambda self, alpha=1, scale=1, input_scale=1: scale * np.where(self > 0, self, alpha * np.expm1(np.minimum(self, 0) * input_scale)),
    "leaky_relu": lambda self, negative_slope=0.01: np.where(self > 0, self, negative_slope * self), "rsqrt": lambda self: self**-0.5,
    "softplus": lambda self, beta=1, threshold=20: np.logaddexp(self * beta, 0) / beta, "mean": reduced(np.mean), "sum": reduced(np.sum),
    "any": reduced(np.any), "all": reduced(np.all), "amax": reduced(np.max), "clamp": lambda self, min=None, max=None: np.clip(self, min, max),
    "embedding": lambda weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False: weight[indices],
    "upsample_nearest2d": lambda input, output_size, scale_factors: input.repeat(int(scale_factors[0]), 2).repeat(int(scale_factors[1]), 3),
    "view": lambda self, size: self.reshape(size), "reshape": lambda self, shape: self.reshape(shape), "slice": cut, "getitem": lambda a, b: a[b],
    "unsqueeze": lambda self, dim: np.expand_dims(self, dim), "squeeze": lambda self, dim=None: self.squeeze(tuple(dim) if isinstance(dim, list) else dim),
    "select": lambda self, dim, index: np.take(self, index, dim), "index_select": lambda self, dim, index: np.take(self, index, dim),
    "unbind": lambda self, dim=0: list(np.moveaxis(self, dim, 0)), "split": split, "split_with_sizes": lambda self, split_sizes, dim=0: split(self, split_sizes, dim),
    "chunk": lambda self, chunks, dim=0: split(self, -(-self.shape[dim] // chunks), dim), "expand": expand, "topk": topk,
    "flatten": lambda self, start_dim=0, end_dim=-1: self.reshape(*self.shape[:start_dim % self.ndim], -1, *self.shape[end_dim % self.ndim + 1 :]),
    "unflatten": lambda self, dim, sizes: self.reshape(*self.shape[: dim % self.ndim], *sizes, *self.shape[dim % self.ndim + 1 :]),
    "index": lambda self, indices: self[tuple(slice(None) if i is None else i for i in indices)], "sym_size": lambda self, dim: self.shape[dim],
    "to": lambda self, dtype: np.asarray(self, dtype), "masked_fill": lambda self, mask, value: np.where(mask, value, self),
    "new_ones": lambda self, size, dtype="float": np.ones(size, dtype), "gather": lambda self, dim, index, sparse_grad=False: np.take_along_axis(self, index, dim),
    "cat": lambda tensors, dim=0: np.concatenate(tensors, dim), "stack": lambda tensors, dim=0: np.stack(tensors, dim),
    "transpose": lambda self, dim0, dim1: self.swapaxes(dim0, dim1), "permute": lambda self, dims: self.transpose(dims),
    "roll": lambda self, shifts, dims=(): np.roll(self, shifts, tuple(dims) or None), "full": lambda size, fill_value, dtype="float": np.full(size, fill_value, dtype),
    "arange": lambda end, start=0, step=1, dtype=None: np.arange(start, end, step, dtype), "cumsum": lambda self, dim, dtype=None: self.cumsum(dim),
    "where": lambda condition, self, other: np.where(condition, self, other), "pow": lambda self, exponent: self**exponent,
    "diff": lambda self, n=1, dim=-1, prepend=None, append=None: np.diff(self, n, dim),
}
EXACT = [f"spikes.{name}" for name in ("fire", "compare", "decode", "linear_sums", "conv_sums", "matmul_sums", "row_gain")]
FROM_SITE = {"spikes.fire": ("sides", "levels", "bounds"), "spikes.compare": ("values", "fraction")}  # stored once, with the site
PLAIN = dict(mul="multiply", div="divide", sub="subtract", neg="negative", le="less_equal", ne="not_equal", eq="equal", lt="less", ge="greater_equal",
             gt="greater", __and__="logical_and", logical_not="logical_not", floordiv="floor_divide", mod="remainder")
def known(op):  # a function of named arguments, or a ufunc of NumPy, which takes them in order
    name = op if op in OPS else op.removeprefix("aten.").split(".")[0]
    ufunc = getattr(np, PLAIN.get(name, name), None)
    if name not in OPS and not isinstance(ufunc, np.ufunc):
        raise ValueError(f"{op} is not in this script")
    return OPS.get(name) or (lambda **named: ufunc(*named.values()))

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
def computed(node, record, values):
    named = {name: read(value, values) for name, value in node["args"].items()}
    named |= {name: record["sites"][named["site"]][name] for name in FROM_SITE.get(node["op"], ())}
    try:
        value = known(node["op"])(**named)
    except Exception as error:
        raise ValueError(f"{node['op']} of {node['name']}: {error}") from error
    if node["op"] not in EXACT and isinstance(value, np.ndarray) and value.dtype == float:  # fixed point
        return np.round(value * 2.0 ** record["fraction"]) / 2.0 ** record["fraction"]
    return value
def replay(folder):
    record, golden = checked(folder), load_file(folder / "golden.safetensors")
    _ = [known(node["op"]) for node in record["nodes"]]  # what cannot run is named before anything runs
    values = load_file(folder / "network.safetensors") | {n: golden[f"input.{n}"] for n in record["inputs"]}
    values = {n: v.astype(float) if v.dtype == np.float32 else v for n, v in values.items()}
    for node in record["nodes"]:
        values[node["name"]] = computed(node, record, values)
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
