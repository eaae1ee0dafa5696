"""Simulate an exported CNN as hls4ml builds it for FPGAs, and compare every count: python … FOLDER PROJECT.

FOLDER is the export `integers` of a chain of products, ReLUs and max-pools. hls4ml 1.3.0 has no `MultiThreshold`: this adds one
as a layer of its own, made of comparators. Needs hls4ml, safetensors and g++; Vitis HLS synthesizes PROJECT elsewhere.
"""

import json
import sys
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
SUMS, COUNTS = "ap_int<32>", "ap_int<16>"


class Comparator(Layer):
    """count = least + the steps whose thresholds the integer has reached; each of `rows` neurons in turn has its own."""

    def initialize(self) -> None:
        self.add_output_variable(self.get_input_variable().shape, precision=IntegerPrecisionType(16, True))
        whole = self.get_attr("fraction") == 0
        kind = IntegerPrecisionType(32, True) if whole else FixedPrecisionType(48, 28, True)
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


def layers(
    record: dict[str, Any], held: dict[str, Any], shape: tuple[int, ...]
) -> tuple[list[dict[str, Any]], Any, Any]:
    """Return hls4ml's layers, images with channels last, and scale and bias behind the last sums."""
    made: list[dict[str, Any]] = [
        {"name": "image", "class_name": "InputLayer", "input_shape": [*shape[1:], shape[0]]}
    ]
    order = np.arange(np.prod(shape)).reshape(shape)  # of a flattened map, where its channels are last
    before, scale, bias = record["inputs"][0], 1.0, 0.0

    def add(kind: str, **facts: Any) -> None:
        made.append({"name": f"layer{len(made)}", "class_name": kind, "inputs": [made[-1]["name"]], **facts})

    for node in record["nodes"]:
        op, args = node["op"], dict(node["args"])
        if op.startswith(("aten.sym_size", "mul")):
            continue
        source = next(args.pop(name) for name in ("x", "counts", "self", "input") if name in args)
        if source != {"value": before}:
            raise SystemExit(f"{node['name']}: a branch ({op}) is not in this example, which builds chains.")
        before, plain = node["name"], all(args.get(name) is None for name in ("up", "down", "gain", "sign"))
        args = {name: held.get(a["value"]) if isinstance(a, dict) else a for name, a in args.items()}
        if op == "spikes.compare" and plain:
            site, rows = record["sites"][args["site"]], args["rows"]
            cuts = args["thresholds"] if rows is None else args["thresholds"][rows]
            cuts, values = cuts[0] / 2.0 ** site["fraction"], site["values"]
            if len(shape) == 1 and len(cuts) > 1:
                cuts = cuts[order.flatten()]
            cuts = (np.moveaxis(cuts, 0, -2) if len(shape) == 3 else cuts).reshape(-1, len(values) - 1)
            add("Comparator", site=args["site"], order=order.flatten(), rows=len(cuts), cuts=cuts.shape[1], least=values[0],
                fraction=site["fraction"], thresholds_data=cuts, steps_data=np.diff(values))  # fmt: skip
        elif op == "spikes.conv_sums" and plain and args["groups"] == 1 and args["dilation"] == [1, 1]:
            weight, stride, padding = args["weight"].astype(float), args["stride"], args["padding"]
            kernel, (channels, high, wide) = weight.shape[2:], shape
            size = [
                (n + 2 * p - k) // s + 1
                for n, p, k, s in zip(shape[1:], padding, kernel, stride, strict=True)
            ]
            add("Conv2D", data_format="channels_last", in_height=high, in_width=wide, n_chan=channels, n_filt=len(weight),
                filt_height=kernel[0], filt_width=kernel[1], stride_height=stride[0], stride_width=stride[1],
                pad_top=padding[0], pad_bottom=padding[0], pad_left=padding[1], pad_right=padding[1], out_height=size[0],
                out_width=size[1], dilation_height=1, dilation_width=1, weight_data=weight.transpose(2, 3, 1, 0),
                bias_data=np.zeros(len(weight)), use_bias=False)  # fmt: skip
            shape = (len(weight), *size)
        elif op in ("spikes.linear_sums", "spikes.linear") and plain:
            weight = args["weight"].astype(float)
            weight = weight[:, order.flatten()] if order.size == weight.shape[1] else weight
            add(
                "Dense",
                n_in=weight.shape[1],
                n_out=len(weight),
                weight_data=weight.T,
                bias_data=np.zeros(len(weight)),
            )
            shape, order = (len(weight),), np.arange(len(weight))
            scale, bias = (0.0 if args.get(name) is None else args[name] for name in ("scale", "bias"))
        elif (
            op == "aten.max_pool2d.default"
            and not any(args.get("padding", [0]))
            and not args.get("ceil_mode")
        ):
            kernel = args["kernel_size"]
            stride = args.get("stride") or kernel
            size = [(n - k) // s + 1 for n, k, s in zip(shape[1:], kernel, stride, strict=True)]
            add("MaxPooling2D", data_format="channels_last", in_height=shape[1], in_width=shape[2], n_filt=shape[0],
                pool_height=kernel[0], pool_width=kernel[1], stride_height=stride[0], stride_width=stride[1], pad_top=0,
                pad_bottom=0, pad_left=0, pad_right=0, out_height=size[0], out_width=size[1])  # fmt: skip
            shape = (shape[0], *size)
        elif op.startswith(("aten.view", "aten.reshape", "aten.flatten")) and len(shape) == 3:
            order = np.arange(np.prod(shape)).reshape(shape).transpose(1, 2, 0)
            shape = (int(np.prod(shape)),)
            add("Reshape", target_shape=list(shape))
        else:
            raise SystemExit(f"{node['name']}: this form of {op} is not in this example.")
    return made, scale, bias


def main(folder: Path, project: Path) -> tuple[int, int, float]:
    """Return how many counts were compared and differ, and by how much outputs differ."""
    record = json.loads((folder / "network.json").read_text())
    golden = load_file(folder / "golden.safetensors")
    images = golden[f"input.{record['inputs'][0]}"]
    made, scale, bias = layers(record, load_file(folder / "network.safetensors"), images.shape[1:])

    project.mkdir(parents=True)
    (header := project.resolve() / "comparator.h").write_text(HEADER)
    backend = hls4ml.backends.get_backend("Vitis")
    register_layer("Comparator", Comparator)
    backend.register_template(ComparatorConfig)
    backend.register_template(ComparatorCall)
    backend.register_source(header)
    config = hls4ml.utils.config.create_config(
        output_dir=str(project), backend="Vitis", io_type="io_parallel"
    )
    precision = {"result": SUMS, "accum": SUMS, "weight": "ap_int<8>", "bias": "ap_int<2>"}
    names = {
        layer["name"]: {"Precision": dict(precision), "ReuseFactor": 1, "Trace": True} for layer in made[1:]
    }
    names["image"] = {"Precision": {"result": "ap_fixed<48,28>"}, "Trace": False}
    config["HLSConfig"] = {
        "Model": {"Precision": SUMS, "ReuseFactor": 1, "Strategy": "Latency"},
        "LayerName": names,
    }
    for layer in made:
        if layer["class_name"] == "Comparator":
            names[layer["name"]]["Precision"] = {"result": COUNTS}
    network = hls4ml.model.ModelGraph.from_layer_list(config, made, ["image"], [made[-1]["name"]])
    network.compile()
    sums, traced = network.trace(np.ascontiguousarray(images.transpose(0, 2, 3, 1)))

    compared = differ = 0
    for layer in made:
        if layer["class_name"] != "Comparator":
            continue
        site = layer["site"]
        expected = np.zeros(record["sites"][site]["shape"], int)
        expected.flat[golden[f"neurons.{site}"]] = golden[f"counts.{site}"]
        counts = traced[layer["name"]].reshape(len(images), -1)
        if expected.ndim == 4:
            expected = expected.transpose(0, 2, 3, 1)
        elif "order" in layer:
            expected = expected[:, layer["order"]]
        compared, differ = (
            compared + expected.size,
            differ + int((counts != expected.reshape(len(images), -1)).sum()),
        )
    (name,) = record["outputs"]
    return (
        compared,
        differ,
        float(np.abs(sums.reshape(len(images), -1) * scale + bias - golden[f"output.{name}"]).max()),
    )


if __name__ == "__main__":
    print(
        "{} counts compared, {} differ; outputs differ by at most {:.2g}".format(
            *main(Path(sys.argv[1]), Path(sys.argv[2]))
        )
    )
