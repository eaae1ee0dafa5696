"""Every preset of one timestep in every format on three kinds of networks: the network's spikes, or a refusal word by word.

Nearly every preset meets every kind of network in one of the forms; with ONESPIKE_EXPORTS=all, in each of them.
"""

from __future__ import annotations

import os
import runpy
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onespike
from exports.small import SHAPES, Attention, Cnn, installed, llama
from onespike.deploy.exports import FORMATS
from onespike.errors import UsageError
from onespike.presets import PRESETS
from onespike.recipe import preset

SCRIPT = Path(__file__).parents[2] / "examples" / "replay_integers.py"
CHAINS = "export: nir holds chains of products and elementwise functions alone: {}. "
ALONE = CHAINS + "Try format='integers'."
PIXELS = CHAINS + "Convert with preset='chip' and io='spiking', or try format='integers'."
ANALOG = "export: nir has no ReLU, and the input of the product before the output stays analog. Convert with io='spiking'."
RULE = (
    "export: the neuron 'mean' at {} fires by a rule of its own, which no format but pt2 can write. "
    "Convert with neuron='sfn', or export with format='pt2'."
)
MANY = (
    "export: qonnx has no thresholds for *: it has * levels. Convert with fewer and without the pass layout, or try "
    "format='onnx'."
)
KINDS: dict[str, Any] = {"cnn": Cnn, "attention": Attention, "llama": llama}
FIRST = {
    "cnn": "5:linear0_input",
    "attention": "block.self_attn:linear0_input",
    "llama": "model.layers.0.self_attn.q_proj:linear0_input",
}


def batch(kind: str) -> Any:
    if kind == "llama":
        return {"input_ids": torch.randint(0, 20, (4, 6)), "use_cache": False}
    return torch.randn(4, *SHAPES[KINDS[kind]])


@cache
def converted(kind: str, name: str) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    batches = [batch(kind) for _ in range(2)]
    # at the preset's own energy: what a loss allows, a small network decides
    return onespike.spike(model, batches, preset(name, budget=preset(name).budget)), batches


def refused(kind: str, name: str, form: str) -> str | None:
    """Return the words of a refusal, or None where the form applies."""
    if form == "nir" and kind == "llama":
        return ALONE.format("this network takes more than one tensor")
    if name == "w8aspike" and not form.startswith("pt2"):
        return RULE.format(FIRST[kind])
    many = name in ("fast", "best", "text") or (name == "bytes" and kind != "cnn")  # of attention weights
    if form == "qonnx" and many:  # which site has how many levels, the pass allocate decides
        return MANY
    if form != "nir":
        return None
    passes = name in ("fast", "best", "text", "chip", "bytes")
    if kind == "cnn":
        if name in ("chip", "bytes"):
            return None
        return PIXELS.format("the bias before 2:conv0_input differs by place") if passes else ANALOG
    if passes:  # its edges are in 8 bits
        return ALONE.format("embed:linear0_input codes an input of 2 dimensions")
    return ALONE.format(f"the product before {FIRST[kind]} is neither of vectors nor of images")


# presets of the paper differ from one another in numbers alone
NAMES = [name for name in PRESETS if preset(name).steps == 1 and not name.startswith("paper-")]
FORMS = dict[str, tuple[str, bool | None]]()
for name, chosen in FORMATS.items():
    several = len(chosen.forms) > 1
    FORMS |= {name + "-integer" * (i and several): (name, i if several else None) for i in chosen.forms}


def _few(kind: int, name: int) -> set[int]:
    """Return the forms in which a preset meets a kind of network when time is short."""
    if NAMES[name] in ("mtn", "uniform", "best") and kind == 2:
        return set()  # a language model takes longest, and these meet attention elsewhere
    only = {list(FORMS).index("pt2")} if NAMES[name] == "w8aspike" and kind == 1 else set()
    return {(-name - 3 * kind) % len(FORMS)} | only


CASES = [
    pytest.param(kind, name, form, id=f"{kind}-{name}-{form}")
    for k, kind in enumerate(FIRST)
    for n, name in enumerate(NAMES)
    for f, form in enumerate(FORMS)
    if os.environ.get("ONESPIKE_EXPORTS") == "all" or f in _few(k, n)
]


@pytest.mark.parametrize(("kind", "name", "form"), CASES)
def test_matrix(kind: str, name: str, form: str, tmp_path: Path) -> None:
    format_name, integer = FORMS[form]
    out, words = tmp_path / f"a{installed(format_name).suffix}", refused(kind, name, form)
    snn, batches = converted(kind, name)
    if words is not None:
        with pytest.raises(UsageError) as error:
            onespike.export(snn, format_name, out, batches, integer=integer)
        assert fnmatchcase(str(error.value), words) and list(tmp_path.iterdir()) == []
        return
    done = onespike.export(snn, format_name, out, batches, integer=integer)
    comparison = done.comparison
    assert comparison.active > min(100, comparison.counts // 5) and comparison.answers_differ == 0
    # functions between products are rounded in another order elsewhere, so that a spike at a bound may differ
    assert comparison.differ <= (0 if format_name == "pt2" else comparison.counts // 500)
    assert comparison.output_difference <= (0 if format_name == "pt2" else 1e-2 * comparison.output_largest)
    if format_name == "integers":
        compared, differ, _ = runpy.run_path(str(SCRIPT))["replay"](out)
        # golden inputs are the first of two batches
        assert compared == comparison.counts // 2 and differ == 0
