"""Passes on the command line: the doctor measures them, mistakes exit with 2, and large spikes are warned of."""

from __future__ import annotations

import pytest
import torch
from command_line import CALIBRATION, TEST, VIT
from torch import nn

from onespike import spike
from onespike.errors import UsageError


def test_ablate_measures_each_choice_once_and_resumes(cli, figures, converted, monkeypatch):
    run = converted(VIT, CALIBRATION, 8)
    words = f"doctor {run} --data {TEST} --passes nearest,center --budget 0.3 --limit"
    done, record = figures(f"{words} 8")
    assert [row["what"] for row in record["rows"]] == ["none", "nearest alone", "center alone", "all"]
    counts = [row["energy"]["counts"] for row in record["rows"]]
    assert max(counts) / min(counts) < 1.1
    other = cli(f"{words} 4").good()  # other images: both ablations are kept
    assert other.out != done.out
    before = (run / "ablation" / "ablation.json").read_bytes()
    monkeypatch.setattr("onespike.runs.evaluate_pair", lambda *_, **__: pytest.fail("measured a second time"))
    assert figures(f"{words} 8")[0].out == done.out and cli(f"{words} 4").out == other.out
    assert (run / "ablation" / "ablation.json").read_bytes() == before


def test_ablate_takes_as_few_images_as_convert(cli, converted, transformers_folder, images):
    """One batch of calibration images is parted there, too, for passes that judge by others."""
    changes = {"passes": ("nearest", "allocate", "weigh"), "budget": 0.2}
    run = converted(f"transformers:{transformers_folder}", CALIBRATION, 6, changes=changes, pretrained=True)
    assert "weigh alone" in cli(f"doctor {run} --data {images} --limit 4 --passes run").good().out


@pytest.mark.parametrize(
    ("changes", "passes", "message"),
    [
        ({"steps": 2}, "nearest", "passes are for one timestep and neurons at synapses."),
        ({"neuron": "mtn"}, "nearest,center", "the neuron 'mtn' codes no centers, offsets or gains"),
    ],
)
def test_ablate_and_convert_refuse_the_same_passes(cli, converted, changes, passes, message):
    run = converted(VIT, CALIBRATION, 2, changes=changes)
    assert cli(f"doctor {run} --data {TEST} --limit 2 --passes {passes}").message().startswith(message)
    with pytest.raises(UsageError, match=f"^{message}"):
        spike(nn.Linear(2, 2), [torch.ones(4, 2)], "sformer", passes=passes, **changes)


def test_spikes_of_many_bits_or_additions_are_warned_about(cli, tmp_path):
    def warned(*words: object) -> list[str]:
        made = f"convert {VIT} --calibrate {CALIBRATION} --limit 8"
        lines = cli(made, *words, "--out", tmp_path / str(len(words))).good().err.splitlines()
        return [line for line in lines if "not for chips" in line]

    bits = "the largest level, 263, has 9 bits"
    start = f"onespike: warning: {VIT}: these spikes are not for chips: "
    assert warned("--preset", "sformer") == [f"{start}{bits}. Take --preset chip, or --set payload_bits=8."]
    assert warned("--preset", "sformer", "--set", "payload_bits=8") == []
    (many,) = warned("--passes", "nearest", "--energy", "counts", "--budget", 1.5)
    assert (
        many.startswith(f"{start}they add 1.")
        and f" times per MAC of the original (counts) and {bits}. " in many
    )
    assert many.endswith("Take --preset chip, or --energy counts --budget 0.1, or --set payload_bits=8.")
