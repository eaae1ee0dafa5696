"""`convert` warns of spikes that few chips can carry, or that cost more than the products they replace."""

from __future__ import annotations

from command_line import CALIBRATION, VIT

WORDS = f"convert {VIT} --calibrate {CALIBRATION} --limit 8"
BITS = "the largest level, 263, has 9 bits"


def test_spikes_of_many_bits_or_additions_are_warned_about(cli, tmp_path):
    def warned(*words: object) -> list[str]:
        lines = cli(WORDS, *words, "--out", tmp_path / str(len(words))).good().err.splitlines()
        return [line for line in lines if "not for chips" in line]

    start = f"onespike: warning: {VIT}: these spikes are not for chips: "
    assert warned("--preset", "sformer") == [f"{start}{BITS}. Take --preset chip, or --set payload_bits=8."]
    assert warned("--preset", "sformer", "--set", "payload_bits=8") == []
    (many,) = warned("--passes", "nearest", "--energy", "counts", "--budget", 1.5)
    assert (
        many.startswith(f"{start}they add 1.")
        and f" times per MAC of the original (counts) and {BITS}. " in many
    )
    assert many.endswith("Take --preset chip, or --energy counts --budget 0.1, or --set payload_bits=8.")
