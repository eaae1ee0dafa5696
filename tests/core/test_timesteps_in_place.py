"""Several timesteps behind in-place operations, on inputs that a network changes, and in several threads at once."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contract.networks import Layers, converted, mlp, rows
from onespike import Recipe, calibrate, convert, preset


def block(self: Layers, x: Tensor) -> Tensor:
    """As in ResNet; with `inplace`, every ReLU and the shortcut overwrite their input."""
    shortcut = F.relu(self.first(x), self.inplace)
    y = self.third(F.relu(self.second(shortcut), self.inplace))
    if self.inplace:
        shortcut += y
        shortcut *= 2
    else:
        shortcut = (shortcut + y) * 2
    return self.last(F.relu(shortcut, self.inplace))


@pytest.mark.parametrize("placement", ["activation", "synapse"])
@pytest.mark.parametrize("name", ["if", "sformer"])
def test_in_place_operations_change_nothing(name, placement):
    torch.manual_seed(0)
    layers, x = {part: nn.Linear(8, 8) for part in ("first", "second", "third", "last")}, torch.randn(64, 8)
    plain, inplace = (Layers(block, inplace=each, **layers) for each in (False, True))
    recipe = preset(name, steps=4, placement=placement)
    thresholds = calibrate(plain, [x], recipe)
    with torch.inference_mode():
        expected, found = (convert(network, thresholds, recipe)(x) for network in (plain, inplace))
    assert torch.equal(found, expected)


class Centers(nn.Module):
    """Takes the mean from its own input, in place, as some preprocessing does; `same` says whether both inputs are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.same: list[bool] = []

    def forward(self, x: Tensor, again: Tensor, options: dict[str, Tensor]) -> Tensor:
        self.same.append(x is again)
        x -= 0.5
        options["shift"] *= 2
        return self.last(self.second(torch.relu(self.first(x) + options["shift"])).relu())


def test_every_pass_sees_the_same_input():
    """In-place work on an input happens to the caller's tensors once, as in the original network."""
    torch.manual_seed(2)
    network, x, shift = Centers(), torch.randn(16, 6), torch.ones(6)

    def given() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        own = x.clone()
        return own, own, {"shift": shift.clone()}

    recipe = Recipe(steps=64)
    thresholds = calibrate(network, [given()], recipe)
    network.same.clear()
    snn, inputs = convert(network, thresholds, recipe), given()
    with torch.inference_mode():
        error = float((snn(*inputs) - network(*given())).abs().mean())
        single = float((convert(network, thresholds)(*given()) - network(*given())).abs().mean())
    assert error < 0.1 * single
    assert torch.equal(inputs[0], x - 0.5)
    assert torch.equal(inputs[2]["shift"], shift * 2)
    assert snn.same == [True] * 64


def stepped(steps: int = 3) -> tuple[nn.Module, Tensor]:
    x = rows(16)
    return converted(mlp(), x, Recipe(steps=steps)), x


def test_threads_have_membranes_of_their_own():
    """Two forwards that stand in the middle of their passes at the same time."""
    snn, x = stepped()
    inputs, meeting = [x, -3 * x], threading.Barrier(2, timeout=60)
    with torch.inference_mode():
        alone = [snn(each) for each in inputs]

    def meet(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        meeting.wait()  # after each layer, so that the passes of both threads interleave

    for module in snn.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(meet)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(torch.inference_mode()(snn.__call__), inputs))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_copies_within_a_forward_start_anew():
    """A copy made while a forward runs takes neither its membranes nor its clock along."""
    snn, x = stepped()
    copies: list[nn.Module] = []
    hook = snn.get_submodule("0").register_forward_hook(
        lambda *_: copies.append(copy.deepcopy(snn)) if not copies else None
    )
    with torch.inference_mode():
        output = snn(x)
        hook.remove()
        for other in (*copies, pickle.loads(pickle.dumps(snn))):
            other.get_submodule("0")._forward_hooks.clear()
            assert torch.equal(other(x), output)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("function", "name"), [(nn.ReLU, "sformer"), (nn.LogSigmoid, "if"), (nn.LogSigmoid, "ecmt")]
)
def test_it_compiles_and_exports(function, name):
    """T passes are one graph, also where a side that is off takes back what the other sent."""
    torch.compiler.reset()
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(4, 8), function(), nn.Linear(8, 3), function(), nn.Linear(3, 3)).eval()
    x = rows(16)
    snn = converted(network, x, preset(name, steps=2))
    with torch.inference_mode():
        compiled = torch.compile(snn, backend="eager", fullgraph=True)
        exported = torch.export.export(snn, (x,)).module()
        for inputs in (x, -2 * x):
            torch.testing.assert_close(compiled(inputs), snn(inputs))
            torch.testing.assert_close(exported(inputs), snn(inputs))


def test_a_part_that_runs_by_itself_leaves_nothing_behind():
    """Outside a forward of the whole network each call is a first step."""
    snn, _ = stepped()
    layer = snn.get_submodule("2")
    x = torch.randn(4, layer.in_features)
    with torch.inference_mode():
        assert torch.equal(layer(x), layer(x))
    assert not layer.neurons.clock.calls


class Remembered:
    """What earlier calls have left, as transformers' caches keep it: an object that torch cannot look into."""

    def __init__(self) -> None:
        self.keys = torch.zeros(0, 4)

    def update(self, keys: Tensor) -> Tensor:
        self.keys = torch.cat((self.keys, keys))
        return self.keys


def decode(self: Layers, x: Tensor, past: Remembered | None = None) -> Tensor:
    keys = (past or Remembered()).update(self.key(x))
    return self.head((self.query(x) @ keys.T).softmax(-1) @ keys)


def test_a_cache_grows_by_one_call():
    """Not by T of them: passes before the last have copies of it."""
    torch.manual_seed(0)
    x, past = rows(5), Remembered()
    decoder = Layers(decode, **{part: nn.Linear(4, 4) for part in ("key", "query", "head")})
    snn = converted(decoder, x, Recipe(steps=3))
    with torch.inference_mode():
        assert torch.equal(snn(x, past), snn(x))
        assert past.keys.shape == (5, 4)
        assert snn(x[:1], past).shape == (1, 4) and past.keys.shape == (6, 4)
