"""Commands and options of earlier versions, and how they are spelled now: whoever types an old one is told."""

from __future__ import annotations

from onespike.recipe import FIELDS

COMMANDS = {
    "ablate": "onespike doctor RUN --data DIR --passes NAMES",
    "benchmark": "onespike evaluate RUN --data DIR --format all",
    "compare": "onespike report RUN RUN",
    "verify": "onespike reproduce theorems, and the first lines of onespike doctor RUN --data DIR",
}
OPTIONS = {f"--{name.replace('_', '-')}": f"--set {name}=…" for name in FIELDS} | {
    "--calibration-images": "--images",
    "--card-only": "what happens without OWNER/NAME",
    "--crop": "--preprocess crop=…",
    "--evaluation": "--json",
    "--export": "--format",
    "--factor": "--set factors=…",
    "--float": "the default",
    "--forms": "--format",
    "--host": "--address HOST:PORT",
    "--mean": "--preprocess mean=…",
    "--pareto": "--energy COLUMN, which shows the front",
    "--per-site": "the pass allocate: onespike convert … --passes allocate --budget RATIO",
    "--picture": "the examples of onespike report RUN --data DIR, which show both networks' boxes",
    "--port": "--address PORT",
    "--pretrained": "--weights pretrained",
    "--prompt": "an argument: onespike generate RUN TEXT",
    "--random-weights": "--weights random",
    "--reference-weights": "what no run does: each holds its weights",
    "--repeat": "of the paper's tables: onespike reproduce NAME --repeat N",
    "--resize": "--preprocess resize=…",
    "--scope": "--set include=backbone",
    "--std": "--preprocess std=…",
    "--task": "an argument: onespike demo segmentation",
    "--tasks": "lm-evaluation-harness itself: see docs/language.md#questions",
    "--tokens": "--length",
    "--validate": "--data",
}


def spelled_now(word: str, existing: set[str]) -> str | None:
    """Return what replaces an option that a command does not have.

    >>> spelled_now("--percentile=2", set())
    '--percentile is now --set percentile=…. See: onespike list fields'
    """
    name = word.partition("=")[0]
    if name in existing or name not in OPTIONS:
        return None
    hint = ". See: onespike list fields" if OPTIONS[name].startswith("--set") else "."
    return f"{name} is now {OPTIONS[name]}{hint}"
