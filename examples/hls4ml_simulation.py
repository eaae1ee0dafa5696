"""Simulate an exported CNN as hls4ml builds it for FPGAs, and compare every count: python … FOLDER PROJECT.

FOLDER is the export `integers` of convolutions, linear maps, ReLUs, pools and residual sums. hls4ml 1.3.0 has no `MultiThreshold`:
this adds one as a layer of its own, made of comparators. Needs hls4ml, safetensors and g++; Vitis HLS synthesizes PROJECT elsewhere.
"""

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hls4ml
import numpy as np
from hls4ml.backends.template import FunctionCallTemplate, LayerConfigTemplate
from hls4ml.model.layers import Layer, register_layer
from hls4ml.model.types import FixedPrecisionType, IntegerPrecisionType
from safetensors.numpy import load_file

HEADER = """#ifndef COMPARATOR_H_
#define COMPARATOR_H_
namespace nnet {
template <class data_T, class res_T, typename CONFIG_T>
void comparator(data_T data[CONFIG_T::n_in], res_T res[CONFIG_T::n_in],
                typename CONFIG_T::threshold_t thresholds[CONFIG_T::rows * CONFIG_T::cuts],
                typename CONFIG_T::step_t steps[CONFIG_T::cuts]) {
Neurons:
    for (unsigned i = 0; i < CONFIG_T::n_in; i++) {
        #pragma HLS PIPELINE
        res_T count = CONFIG_T::least;
        for (unsigned j = 0; j < CONFIG_T::cuts; j++) {
            #pragma HLS UNROLL
            if (data[i] >= thresholds[(i % CONFIG_T::rows) * CONFIG_T::cuts + j])
                count += steps[j];
        }
        res[i] = count;
    }
}
} // namespace nnet
#endif
"""
CONFIG = """struct config{index} {{
    static const unsigned n_in = {n_in};
    static const unsigned rows = {rows};
    static const unsigned cuts = {cuts};
    static const int least = {least};
    typedef {threshold_t.name} threshold_t;
    typedef {steps_t.name} step_t;
}};\n"""
CALL = "nnet::comparator<{input_t}, {output_t}, {config}>({input}, {output}, {first}, {second});"
WINDOWS = """template <class data_T, typename CONFIG_T>
class fill_buffer_{index} : public nnet::FillConv2DBuffer<data_T, CONFIG_T> {{
  public:
    static void fill_buffer(
        data_T data[CONFIG_T::in_height * CONFIG_T::in_width * CONFIG_T::n_chan],
        data_T buffer[CONFIG_T::n_pixels][CONFIG_T::filt_height * CONFIG_T::filt_width * CONFIG_T::n_chan],
        const unsigned partition) {{
        for (int p = 0; p < (int)CONFIG_T::n_pixels; p++) {{
            const int pixel = partition * CONFIG_T::n_pixels + p;
            for (int i = 0; i < (int)(CONFIG_T::filt_height * CONFIG_T::filt_width * CONFIG_T::n_chan); i++) {{
                const int channel = i % CONFIG_T::n_chan, place = i / CONFIG_T::n_chan;
                const int y = pixel / CONFIG_T::out_width * CONFIG_T::stride_height + place / CONFIG_T::filt_width - CONFIG_T::pad_top;
                const int x = pixel % CONFIG_T::out_width * CONFIG_T::stride_width + place % CONFIG_T::filt_width - CONFIG_T::pad_left;
                const bool inside = y >= 0 && y < (int)CONFIG_T::in_height && x >= 0 && x < (int)CONFIG_T::in_width;
                buffer[p][i] = inside ? data[(y * CONFIG_T::in_width + x) * CONFIG_T::n_chan + channel] : data_T(0);
            }}
        }}
    }}
}};
"""
"""hls4ml writes one statement for each element of each window, a million for a ResNet-18: here they are loops."""
SUMS, COUNTS, INPUT = "ap_int<32>", "ap_int<16>", "ap_fixed<64,32>"
VALUES = "ap_fixed<48,28,AP_RND_CONV,AP_WRAP,0>"
"""Fixed point of `integers`, 20 bits behind the point, halves to the even one."""
MEANS = "ap_fixed<64,32>"
STACK = 2**29
"""The simulation holds all maps of an image on the stack."""


class Comparator(Layer):
    """count = least + the steps whose thresholds the integer has reached; each of `rows` neurons in turn has its own."""

    def initialize(self) -> None:
        self.add_output_variable(self.get_input_variable().shape, precision=IntegerPrecisionType(16, True))
        kind = IntegerPrecisionType(32, True) if self.get_attr("whole") else FixedPrecisionType(64, 32, True)
        for name, data, precision in (
            ("threshold", self.get_attr("thresholds_data"), kind),
            ("steps", self.get_attr("steps_data"), IntegerPrecisionType(16, True)),
        ):
            self.add_weights_variable(name=name, var_name=name[0] + "{index}", data=data, precision=precision)


class ComparatorConfig(LayerConfigTemplate):
    def __init__(self) -> None:
        super().__init__(Comparator)

    def format(self, node: Any) -> str:
        params = self._default_config_params(node)
        params["n_in"] = int(np.prod(node.get_input_variable().shape))
        return CONFIG.format(**params)


class ComparatorCall(FunctionCallTemplate):
    def __init__(self) -> None:
        super().__init__(Comparator, include_header=["nnet_utils/comparator.h"])

    def format(self, node: Any) -> str:
        names = {"first": node.get_weights("threshold").name, "second": node.get_weights("steps").name}
        return CALL.format(**self._default_function_params(node), **names)


@dataclass
class Value:
    """A result: its layer in hls4ml, its shape and its type.

    Element i has the place order[i] where channels are first. Its number is `factor` times that in hls4ml, whose pools are means.
    """

    layer: str
    shape: tuple[int, ...]
    kind: str
    order: Any
    factor: int = 1


def exact(numbers: Any) -> str:
    """Return the type of fixed point that holds these floats."""
    digits = next(n for n in range(64) if (numbers * 2.0**n == np.round(numbers * 2.0**n)).all())
    whole = int(np.log2(np.abs(numbers).max() + 1)) + 2
    return f"ap_fixed<{whole + digits},{whole}>"


def window(x: Value, kernel: Any, args: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return the facts of a window that moves over an image, and the size of the result."""
    (high, wide), stride, (top, left) = x.shape[1:], args["stride"], args.get("padding") or (0, 0)
    size = [
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip((high, wide), (top, left), kernel, stride, strict=True)
    ]
    facts = {"data_format": "channels_last", "in_height": high, "in_width": wide, "out_height": size[0], "out_width": size[1],
             "stride_height": stride[0], "stride_width": stride[1], "pad_top": top, "pad_bottom": top, "pad_left": left,
             "pad_right": left}  # fmt: skip
    return facts, size


class Layers:
    """hls4ml's layers for a record, images with channels last.

    Attributes:
        made: the layers.
        types: name of a layer → what hls4ml's configuration says of it.
        fired: name of a layer → its site, and the order of its elements.
        scale: of the last sums, which is left to the host, as is `bias`.
    """

    def __init__(self, record: dict[str, Any], held: dict[str, Any], shape: tuple[int, ...]) -> None:
        self.sites, (self.output,) = record["sites"], record["outputs"].values()
        self.made, self.types, self.fired = list[Any](), dict[str, Any](), dict[str, Any]()
        self.scale, self.bias = 1.0, 0.0
        self.values: dict[Any, Value] = {}
        image = self.add("InputLayer", (), shape, INPUT, input_shape=[*shape[1:], shape[0]])
        self.values[record["inputs"][0]] = image
        for node in record["nodes"]:
            if node["op"].startswith(("aten.sym_size", "mul")):  # sizes of shapes
                continue
            names = {name: a["value"] for name, a in node["args"].items() if isinstance(a, dict)}
            sources = [self.values[name] for name in names.values() if name in self.values]
            args = {name: held.get(names[name]) if name in names else a for name, a in node["args"].items()}
            made = self.built(node["op"], sources, args, names.get("weight", ""), node["name"] == self.output)
            if made is None:
                raise SystemExit(f"{node['name']}: this form of {node['op']} is not in this example.")
            self.values[node["name"]] = made

    def add(
        self, kind: str, sources: Any, shape: Any, result: str, types: Any = None, order: Any = None, factor: int = 1, **facts: Any
    ) -> Value:  # fmt: skip
        """Add a layer with the types of its parts."""
        name = f"layer{len(self.made)}"
        inputs = {"inputs": [source.layer for source in sources]} if sources else {}
        self.made.append({"name": name, "class_name": kind, **inputs, **facts})
        self.types[name] = {"Precision": {"result": result, **(types or {})}, "Trace": kind == "Comparator"}
        if order is None:
            order = np.arange(np.prod(shape)).reshape(shape)
            order = order.transpose(1, 2, 0) if len(shape) == 3 else order
        return Value(name, tuple(shape), result, order.flatten(), factor)

    def built(
        self, op: str, sources: list[Value], args: dict[str, Any], weight: str, last: bool
    ) -> Value | None:
        """Return the result of a node; None for what is not in this example."""
        x, product = sources[0], op.removesuffix("_sums")
        image, size = len(x.shape) == 3, x.order.size
        if any(args.get(name) is not None for name in ("up", "down", "gain", "sign")):
            return None
        if op == "spikes.compare":
            return self.comparator(x, args)
        if product in ("spikes.conv", "spikes.linear"):
            if args.get("groups", 1) != 1 or {*args.get("dilation", ())} > {1}:
                return None
            sums = self.values.get((x.layer, weight)) or self.product(x, args)
            self.values[x.layer, weight] = sums  # where both its values and its sums are read
            return sums if op != product else self.valued(sums, args, last)
        if op == "aten.relu.default":
            return self.add("Activation", [x], x.shape, x.kind, order=x.order, activation="relu", n_in=size)
        if op == "aten.add.Tensor" and [y.shape for y in sources] == [x.shape] * 2 and "alpha" not in args:
            return self.add("Merge", sources, x.shape, VALUES, op="add")
        if op == "aten.max_pool2d.default" and not args.get("ceil_mode") and image:
            return self.pool("MaxPooling2D", x, args, x.kind, 1)
        count, padded = int(np.prod(args.get("kernel_size", 0))), np.any(args.get("padding", 0))
        if op == "aten.avg_pool2d.default" and args.get("divisor_override") == 1 and image and not padded:
            # a mean of a power of two is exact
            return None if count & (count - 1) else self.pool("AveragePooling2D", x, args, MEANS, count)
        if op.startswith(("aten.view", "aten.reshape", "aten.flatten")) and image:
            return self.add(
                "Reshape", [x], (size,), x.kind, order=x.order, factor=x.factor, target_shape=[size]
            )
        return None

    def comparator(self, x: Value, args: dict[str, Any]) -> Value:
        site, rows = self.sites[args["site"]], args["rows"]
        cuts = args["thresholds"] if rows is None else args["thresholds"][rows]
        cuts, values = cuts[0] / (x.factor * 2.0 ** site["fraction"]), site["values"]
        cuts = cuts[x.order] if len(x.shape) == 1 and len(cuts) > 1 else cuts
        cuts = (np.moveaxis(cuts, 0, -2) if len(x.shape) == 3 else cuts).reshape(-1, len(values) - 1)
        fired = self.add("Comparator", [x], x.shape, COUNTS, order=x.order, rows=len(cuts), cuts=cuts.shape[1], least=values[0],
                         whole=x.kind == SUMS, thresholds_data=cuts, steps_data=np.diff(values))  # fmt: skip
        self.fired[fired.layer] = (args["site"], x.order)
        return fired

    def product(self, x: Value, args: dict[str, Any]) -> Value:
        """Return the sums of a product."""
        weight = args["weight"].astype(float)
        kind, facts, shape = "Dense", {"n_in": weight.shape[1], "n_out": len(weight)}, (len(weight),)
        if weight.ndim == 4:
            kind, (facts, size) = "Conv2D", window(x, weight.shape[2:], args)
            facts |= {"n_chan": x.shape[0], "n_filt": len(weight), "filt_height": weight.shape[2], "filt_width": weight.shape[3],
                      "dilation_height": 1, "dilation_width": 1}  # fmt: skip
            shape = (len(weight), *size)
        each = weight[0].size
        weight = weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight[:, x.order].T
        types = {"accum": SUMS, "weight": "ap_int<8>", "bias": "ap_int<2>"}
        sums = self.add(
            kind,
            [x],
            shape,
            SUMS,
            types,
            weight_data=weight,
            bias_data=np.zeros(shape[0]),
            use_bias=False,
            **facts,
        )
        # one product of each sum at a time: otherwise all products of a pixel are on the stack
        self.types[sums.layer] |= {"Strategy": "Resource", "ReuseFactor": each}
        return sums

    def valued(self, sums: Value, args: dict[str, Any], last: bool) -> Value:
        """Return the values of sums: their scale and bias, in fixed point."""
        zeros = np.zeros(sums.shape[0])
        scale, bias = (
            zeros if args[name] is None else args[name].astype(float) for name in ("scale", "bias")
        )
        if last:
            self.scale, self.bias = scale, bias
            return sums
        types = {"scale": exact(scale), "bias": exact(bias)}
        facts = {"n_in": sums.order.size, "n_filt": len(scale), "scale_data": scale, "bias_data": bias}
        return self.add("BatchNormalization", [sums], sums.shape, VALUES, types, **facts)

    def pool(self, name: str, x: Value, args: dict[str, Any], result: str, factor: int) -> Value:
        kernel = args["kernel_size"]
        facts, size = window(x, kernel, {**args, "stride": args.get("stride") or kernel})
        facts |= {"n_filt": x.shape[0], "pool_height": kernel[0], "pool_width": kernel[1], "count_pad": False}
        return self.add(name, [x], (x.shape[0], *size), result, {"accum": result}, factor=factor, **facts)


def simulated(network: Any, images: Any) -> Any:
    """Return outputs and traced results of a compiled network."""
    answers = list[Any]()
    threading.stack_size(STACK)
    thread = threading.Thread(target=lambda: answers.append(network.trace(images)))
    thread.start()
    thread.join()
    return answers[0]


def main(folder: Path, project: Path) -> tuple[int, int, float]:
    """Return how many counts were compared and differ, and by how much outputs differ."""
    record = json.loads((folder / "network.json").read_text())
    golden = load_file(folder / "golden.safetensors")
    images = golden[f"input.{record['inputs'][0]}"]
    layers = Layers(record, load_file(folder / "network.safetensors"), images.shape[1:])

    project.mkdir(parents=True)
    (header := project.resolve() / "comparator.h").write_text(HEADER)
    backend = hls4ml.backends.get_backend("Vitis")
    backend.generate_conv2d_line_buffer_fn = lambda index, *_, **__: WINDOWS.format(index=index)
    register_layer("Comparator", Comparator)
    backend.register_template(ComparatorConfig)
    backend.register_template(ComparatorCall)
    backend.register_source(header)
    config = hls4ml.utils.config.create_config(
        output_dir=str(project), backend="Vitis", io_type="io_parallel"
    )
    model = {"Precision": SUMS, "ReuseFactor": 1, "Strategy": "Latency"}
    config["HLSConfig"] = {"Model": model, "LayerName": layers.types}
    first, *_, last = (layer["name"] for layer in layers.made)
    network = hls4ml.model.ModelGraph.from_layer_list(config, layers.made, [first], [last])
    network.compile()
    sums, traced = simulated(network, np.ascontiguousarray(images.transpose(0, 2, 3, 1)))

    compared = differ = 0
    for name, (site, order) in layers.fired.items():
        expected = np.zeros((len(images), order.size), int)
        expected.flat[golden[f"neurons.{site}"]] = golden[f"counts.{site}"]
        compared += expected.size
        differ += int((traced[name].reshape(len(images), -1) != expected[:, order]).sum())
    output = golden[f"output.{next(iter(record['outputs']))}"]
    answers = sums.reshape(len(images), -1) * layers.scale + layers.bias
    return compared, differ, float(np.abs(answers - output).max())


if __name__ == "__main__":
    print(
        "{} counts compared, {} differ; outputs differ by at most {:.2g}".format(
            *main(Path(sys.argv[1]), Path(sys.argv[2]))
        )
    )
