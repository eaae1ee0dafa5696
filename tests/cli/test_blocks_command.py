"""`--device-map blocks`: a network that is never whole in memory, converted and evaluated, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from language_folders import llama, text

pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("blocks")
    return llama(folder / "llama", num_hidden_layers=3), text(folder / "story.txt", 0, 95)


def test_convert_and_evaluate_give_the_same_run_and_figures(cli, given, tmp_path):
    network, story = given
    words = ("convert", f"transformers:{network}", "--weights", "pretrained", "--preset", "sformer", "--calibrate", story,
             "--length", 16, "--batch-size", 2)  # fmt: skip
    assert cli(*words, "--out", tmp_path / "one").code == 0
    made = cli(*words, "--device-map", "blocks:1MB", "--out", tmp_path / "two")
    assert made.code == 0, made.err
    assert (
        "blocks         weights 69.02 KB in 5 parts; in memory 0.10 KB always, 20.93 KB for model.layers.0"
        in made.out
    )
    assert re.search(r"carried per batch; available 1\.00 MB: \d+ batches at once", made.out)
    one, two = ((tmp_path / name / "thresholds.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    measured = ("evaluate", tmp_path / "two", "--data", story, "--batch-size", 2, "--json")
    assert cli(*measured, tmp_path / "one.json").code == 0
    found = cli(*measured, tmp_path / "two.json", "--device-map", "blocks")
    assert found.code == 0, found.err
    assert "blocks         weights" in found.out
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert first.pop("made") and second.pop("made")
    for record in (first, second):
        del record["seconds"], record["dead_share"]
    assert first == second and first["windows"] == 6


@pytest.mark.parametrize(("words", "message"), [
    (("--device-map", "blocks:10KB"), "blocks: 20.93 KB for the largest block, model.layers.0, and 0.00 KB for one batch do"),
    (("--device-map", "blocks:many"), "'many' is no size of memory. Write for example 8GB or 500MB."),
    (("--device-map", "blocks", "--preset", "fast"), "blocks: refit change weights, and need all of them in memory."),
])  # fmt: skip
def test_what_cannot_be_is_refused(cli, given, tmp_path, words, message):
    network, story = given
    result = cli("convert", f"transformers:{network}", "--weights", "pretrained", "--calibrate", story, "--length", 16,
                 *words, "--out", tmp_path / "run")  # fmt: skip
    assert result.message().startswith(message)
    assert not (tmp_path / "run").exists()


def test_integers_need_all_weights(cli, tmp_path):
    refused = cli("evaluate", tmp_path, "--data", "text.txt", "--integer", "--device-map", "blocks")
    assert refused.message().startswith("--integer and --compare make integers of all weights in memory")
