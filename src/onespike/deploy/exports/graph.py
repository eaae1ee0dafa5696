"""A network as a graph in which every act of a site is one named operation.

`marked` puts markers where neurons and integer products stand, and `trace` writes down what runs: the operations
of `operations.py`, and between them torch's own functions. Every format but `pt2` is written from this graph, by `graph_of`.
"""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

from onespike.conversion.firing import Neurons
from onespike.deploy.exports import operations
from onespike.deploy.products import IntegerProduct
from onespike.errors import UsageError, first_line
from onespike.neurons import Neuron
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating

FIXED = "the size of its batch is fixed at {}: the network itself depends on it"
LENGTH = "its inputs have {} tokens: the network itself, or a pass, depends on their number"
Log = list[tuple[str, Tensor]]


class Site(nn.Module):
    """Replace a neuron: fire and decode by name, and keep its counts."""

    gain: Tensor | None

    def __init__(self, name: str, neuron: Neuron, log: Log) -> None:
        super().__init__()
        code = neuron.code()
        if not neuron.coded or not code.shifts:
            raise UsageError(
                f"export: the neuron '{neuron.name}' at {name} fires by a rule of its own, which no format but pt2 can "
                "write. Convert with neuron='sfn', or export with format='pt2'."
            )
        self.name, self.log, self.sides = name, log, code.sides
        self.firing = (code.sides, list(code.levels), list(code.function.bounds), name)
        up, down = code.units()
        # a channel that is off divides by infinity and multiplies by 0
        buffers: dict[str, Tensor | None] = {
            "positive": torch.where(up > 0, up, torch.inf), "negative": torch.where(down > 0, down, torch.inf),
            "up": up, "down": down, "center": code.center, "gain": code.gain, "offset": code.offset,
            "typical": code.typical,
        }  # fmt: skip
        for part, value in buffers.items():
            self.register_buffer(part, None if value is None else value.detach())

    def fire(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The counts, and the gains of their rows."""
        x, gain = x.float(), self.gain
        if self.typical is not None:
            gain = operations.row_gain(x, self.typical, self.center, self.gain)
        counts = operations.fire(x, self.positive, self.negative, self.center, gain, *self.firing)
        self.log.append((self.name, counts))
        return counts, gain

    def forward(self, x: Tensor) -> Tensor:
        counts, gain = self.fire(x)
        value = operations.decode(counts, self.up, self.down, gain, self.offset, self.sides, self.name)
        return value.to(x.dtype)


class Product(nn.Module):
    """Replace an integer product: multiply a site's counts by name."""

    def __init__(self, site: Site, form: IntegerProduct) -> None:
        super().__init__()
        if not form.fits:
            raise UsageError(
                f"export: the sums at {site.name} do not fit into 32 bits. Convert with fewer levels, or with "
                "a larger scale."
            )
        if any(before != after for before, after in form.padding):
            raise UsageError(
                "export: a convolution pads one side more than the other (padding='same' with an even kernel). "
                "Pad in a layer of its own."
            )
        self.form, self.biased = (form,), form.biased  # no child: its buffers are not exported
        once = bool((form.times_up == 1).all() and (form.times_down == 1).all())
        self.register_buffer("weight", form.weight)
        self.register_buffer("scale", form.scale)
        self.register_buffer("bias", form.bias)
        self.register_buffer("up", None if once else form.times_up)
        self.register_buffer("down", None if once else form.times_down)
        self.facts = (form.most, site.sides != "positive", site.name)
        self.other = None if form.other is None else Product(site, form.other)

    def forward(self, x: Tensor, site: Site) -> Tensor:
        return self.multiply(*site.fire(x))

    def multiply(self, counts: Tensor, gain: Tensor | None) -> Tensor:
        """The value of counts, and of those of the other sign where they have weights of their own."""
        (form,) = self.form
        if form.shift is not None:
            # the first call, before the network is traced, settles what depends on the size of the image
            bias: Any = form.constants(tuple(counts.shape[2:]))
            self.bias, form.shift = bias.flatten() if bias.shape[1:].numel() == 1 else bias, None
        if form.dims:
            stride, _, dilation, groups = form.geometry
            around = (list(stride), [before for before, _ in form.padding], list(dilation), groups)
            value = operations.conv(counts, *self._buffers.values(), *around, *self.facts)
        else:
            value = operations.linear(counts, *self._buffers.values(), gain, *self.facts)
        return value if self.other is None else value + self.other.multiply(counts, gain)


class Marked(nn.Module):
    """A network with markers, whose forward also returns the counts of every site, in firing order."""

    def __init__(self, network: nn.Module, log: Log) -> None:
        super().__init__()
        self.network, self.log = network, log

    def forward(self, *args: Any, **kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
        self.log.clear()
        output = named_tensors(self.network(*args, **kwargs))
        counts = [fired for _, fired in self.log]
        self.log.clear()
        return list(output.values()), counts


def named_tensors(output: Any) -> dict[str, Tensor]:
    """Return the tensors of an output by names that a file can have.

    >>> list(named_tensors({"scores": torch.zeros(1), "extra": None, "boxes": torch.zeros(1)}))
    ['scores', 'boxes']
    >>> list(named_tensors(torch.zeros(1))), list(named_tensors([torch.zeros(1), torch.zeros(1)]))
    (['output'], ['output0', 'output1'])
    """
    named = {}
    for path, leaf in tree_flatten_with_path(output)[0]:
        if isinstance(leaf, Tensor):
            words = "".join(c if c.isalnum() or c == "_" else " " for c in keystr(path)).split()
            name = "_".join(words) or "output"
            named[f"output{name}" if name.isdecimal() else name] = leaf
    return named


def bare(network: nn.Module) -> nn.Module:
    """Return a copy that shares its weights and holds nothing that only `revert_` needs."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    twin = copy.deepcopy(network, memo)
    for module in twin.modules():
        module._modules.pop("folded", None)
    return twin.eval()


def marked(network: nn.Module, log: Log) -> nn.Module:
    """Return a copy of a network with markers in place of its neurons and of its integer products."""
    twin = bare(network)
    for module in twin.modules():
        owner: Any = module._modules.get("neurons")
        if not isinstance(owner, Neurons):
            continue
        neurons: dict[str, Any] = owner._modules
        for key, neuron in list(neurons.items()):
            if isinstance(neuron, Neuron):
                neurons[key] = Site(f"{owner.owner}:{key}", neuron, log)
        for key in owner.products:  # products of two activations decode, and multiply in float
            module._modules.pop(f"integer_{key.removesuffix('_lhs')}", None)
        owner.products = {
            key: Product(neurons[key], form) for key, form in owner.products.items() if key.endswith("_input")
        }
        module._modules |= {f"integer_{key}": product for key, product in owner.products.items()}
    return twin


class Graph:
    """An exported program.

    Attributes:
        body: its nodes; those made by `insert` stand where it inserts, as in `with graph.body.inserting_before(node)`.
        inputs: the tensors that it takes, in order; constants of the call, such as `use_cache=False`, are none of them.
        held: name of a node → the name and the value of the tensor that it stands for.
        notes: what the reader should know.
        sites: all sites in firing order; one may fire more than once.
        outputs: the names of the outputs.
    """

    sites: list[str]
    outputs: list[str]

    def __init__(self, program: Any) -> None:
        self.program, signature = program, program.graph_signature
        self.body: Any = program.graph
        stored = {**program.state_dict, **program.constants}
        put = [n for n in self.body.find_nodes(op="placeholder") if n.name in signature.user_inputs]
        values = {node: node.meta["val"] for node in put}
        self.inputs: list[fx.Node] = [n for n, v in values.items() if isinstance(v, Tensor) and v.dim()]
        held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        held |= signature.inputs_to_lifted_tensor_constants
        self.held = {
            node: (name.removeprefix("network."), stored[name].detach()) for node, name in held.items()
        }
        notes = []
        for example in map(values.__getitem__, self.inputs):
            kinds = (FIXED,) if example.is_floating_point() else (FIXED, LENGTH)
            sizes = zip(kinds, example.shape, strict=False)
            notes += [text.format(size) for text, size in sizes if not isinstance(size, torch.SymInt)]
        self.notes = tuple(dict.fromkeys(notes))

    def name(self, node: fx.Node) -> str:
        """Return the name of a result, or of the tensor that is held there."""
        return self.held[node.name][0] if node.name in self.held else node.name

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The held tensors that a node reads, by name."""
        read = (node.name for node in self.body.nodes if node.users)
        return dict(self.held[name] for name in read if name in self.held)

    def check_once(self, format: str) -> None:
        """Refuse a network with a site that fires more than once."""
        for site in self.sites:
            if self.sites.count(site) > 1:
                raise UsageError(
                    f"export: {site} fires more than once in a forward, which {format} cannot hold. Try format='onnx'."
                )

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute, in running order."""
        return [node for node in self.body.nodes if node.op == "call_function"]

    def calls_of(self, *operations: str) -> list[fx.Node]:
        """The nodes that compute one of these operations."""
        return [node for node in self.calls if operation_of(node) in operations]

    def insert(self, target: Any, *args: Any, like: fx.Node | None = None) -> fx.Node:
        """Return a new node; its result has the form of another one's, or the form that the operation gives it."""
        made: fx.Node = self.body.call_function(target, args)
        made.meta = {} if like is None else dict(like.meta)
        if like is None:
            made.meta["val"] = target(*fx.map_arg(args, lambda node: node.meta["val"]))
        return made

    def insert_behind(self, node: fx.Node, target: Any, *args: Any) -> fx.Node:
        """Return a new node, with a result of the same form, that whatever read this node reads instead."""
        with self.body.inserting_after(node):
            made = self.insert(target, *args, like=node)
        node.replace_all_uses_with(made, lambda reader: reader is not made)
        return made

    def hold(self, name: str, value: Tensor) -> fx.Node:
        """Return a new node that stands for a constant of the program."""
        with self.body.inserting_before(next(iter(self.body.nodes))):
            made: fx.Node = self.body.placeholder(f"held_{len(self.held)}")
        made.meta["val"] = self.inputs[0].meta["val"].fake_mode.from_tensor(value, static_shapes=True)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), name, None)
        self.program.graph_signature.input_specs.insert(0, spec)
        self.held[made.name], self.program.constants[name] = (name, value), value
        return made

    def varies(self, argument: Any) -> bool:
        """Whether an argument is a result, not a tensor that is held or a constant."""
        return isinstance(argument, fx.Node) and argument.name not in self.held

    def tensor(self, argument: Any) -> Tensor | None:
        """Return the held tensor that an argument of a node stands for, if any."""
        return self.held.get(argument.name, ("", None))[1] if isinstance(argument, fx.Node) else None

    @property
    def results(self) -> list[fx.Node]:
        """The nodes whose values it returns, in order."""
        return list(self.body.output_node().args[0])[-len(self.program.graph_signature.user_outputs) :]


def operation_of(node: fx.Node) -> str:
    """Return the name of what a node does; `default` is left out of our own."""
    if isinstance(node.target, torch._ops.OpOverload):
        text = str(node.target)
        return text.removesuffix(".default") if text.startswith("spikes.") else text
    return getattr(node.target, "__name__", str(node.target))


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a node by the names that its operation gives them, with its defaults."""
    target: Any = node.target
    parameters = target._schema.arguments
    passed = dict(zip((parameter.name for parameter in parameters), node.args, strict=False)) | node.kwargs
    return {parameter.name: passed.get(parameter.name, parameter.default_value) for parameter in parameters}


def concrete(value: Any) -> Any:
    """Return a symbolic size as that of the example."""
    if isinstance(value, fx.Node):
        return concrete(value.meta["val"])
    if isinstance(value, (list, tuple)):
        return type(value)(map(concrete, value))
    if isinstance(value, dict):
        return {name: concrete(part) for name, part in value.items()}
    return value.node.hint if isinstance(value, torch.SymInt) else value


def kind_of(value: Any) -> str:
    """Return the type of a result: `float`, `int` or `bool`."""
    dtype = value if isinstance(value, torch.dtype) else value.meta["val"].dtype
    return "bool" if dtype is torch.bool else "float" if dtype.is_floating_point else "int"


CHECKS = tuple(
    f"aten.{name}.default"
    for name in ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size")
)
ALIASES = tuple(f"aten.{name}.default" for name in ("dropout", "contiguous", "alias", "detach", "detach_"))
COPIES = ("aten.clone.default", "aten.lift_fresh_copy.default")


def _purify_(graph: fx.Graph) -> None:
    """Remove checks, other names and copies of a value; what changes a value in place returns another one."""
    graph.eliminate_dead_code()
    before, copies = set[fx.Node](), list[Any]()
    first: Any
    for node in graph.nodes:
        op, first = operation_of(node), node.args[0] if node.args else None
        before.add(node)
        if op in CHECKS:
            graph.erase_node(node)
        elif op in ALIASES or (op.startswith("aten.to.") and kind_of(node) == kind_of(first)):
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        elif op in COPIES:
            copies.append(node)
        elif isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            space, name, overload = op.split(".")
            node.target = getattr(getattr(getattr(torch.ops, space), name.removesuffix("_")), overload)
            # later readers read the result
            first.replace_all_uses_with(node, lambda reader: reader not in before)
    for node in copies:  # only now: a copy stays as it is when its original changes
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def trace(module: nn.Module, batch: Any, *, pure: bool = False, fixed: bool = False) -> Graph:
    """Return what a module runs, by `torch.export` with an open batch size where the network permits it.

    `pure` leaves only nodes that compute a value of their own; with `fixed` all sizes are those of the batch.
    """
    args, kwargs = call(lambda *args, **kwargs: (args, kwargs), batch)

    def batched(leaf: Any) -> Any:
        if fixed or not isinstance(leaf, Tensor) or not leaf.dim():
            return None
        # inputs that are not floats are tokens, whose number is left open, too
        return dict.fromkeys(range(1 if leaf.is_floating_point() else leaf.dim()), torch.export.Dim.AUTO)

    # the wrapper's forward takes *args and **kwargs
    shapes = {name: tree_map(batched, part) for name, part in (("args", args), ("kwargs", kwargs)) if part}
    try:
        with evaluating(module), torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise UsageError(
            f"export: torch.export cannot follow this network ({type(error).__name__}: {first_line(error)}). "
            "Its forward must not depend on values."
        ) from error
    program._guards_code = []  # of several inputs they speak by names that only the network's own forward has
    if pure:
        _purify_(program.graph)
    return Graph(program)


def graph_of(network: nn.Module, batch: Any, *, pure: bool = True, fixed: bool = False) -> Graph:
    """Return the graph of a network in which every act of a site is one operation, as `trace`."""
    log = Log()
    twin = marked(network, log)
    with torch.no_grad():
        outputs = list(named_tensors(call(twin, batch)))
    sites = [site for site, _ in log]
    graph = trace(Marked(twin, log), batch, pure=pure, fixed=fixed)
    graph.sites, graph.outputs = sites, outputs
    return graph
