"""The Hub form: a run folder with a model card is a repository, and a repository is a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onespike.adapters.base import first_line, require
from onespike.energy.columns import meanings
from onespike.errors import LoadError, UsageError
from onespike.runs import storage
from onespike.runs.pair import NetworkPair
from onespike.runs.recipe_file import recipe_text
from onespike.runs.saving import load_run, save_run
from onespike.runtime.atomic import write_atomically
from onespike.tasks import task_of

CARD, CONFIG = "README.md", "config.json"
CITATION = """@article{chen2025onetimestep,
  title  = {One-Timestep is Enough: Achieving High-performance ANN-to-SNN Conversion via Scale-and-Fire Neurons},
  author = {Chen, Qiuyang and Yang, Huiqi and Meng, Qingyan and Ma, Zhengyu},
  year   = {2025}
}"""


def save(folder: Path | str, pair: NetworkPair) -> Path:
    """Write a network and how it was converted into a new folder: JSON and safetensors."""
    save_run(Path(folder), pair)
    return Path(folder)


def load(folder: Path | str) -> NetworkPair:
    """Read what `save` or `onespike convert` wrote; nothing in it is unpickled."""
    return load_run(Path(folder))


def from_pretrained(name: Path | str, *, revision: str | None = None) -> NetworkPair:
    """Load a converted network from a folder, or from a repository `OWNER/NAME` on the Hugging Face Hub."""
    if Path(name).is_dir():
        return load_run(Path(name))
    hub = require("huggingface_hub", "transformers", f"from_pretrained {name}")
    try:
        folder = hub.snapshot_download(str(name), revision=revision)
    except Exception as error:  # any exception of a hub client: offline, no such repository, no permission
        raise LoadError(
            f"{name}: neither a folder nor a repository that can be fetched ({first_line(error)}). "
            "Check the name and the network connection."
        ) from error
    return load_run(Path(folder))


def push_to_hub(
    folder: Path | str,
    repository: str,
    *,
    license: str,
    evaluation: Mapping[str, Any] | None = None,
    private: bool = True,
    api: Any = None,
) -> str:
    """Write the model card into a run folder and upload the folder; return the repository's address.

    Args:
        folder: the run.
        repository: `OWNER/NAME`.
        license: the license of the original network, as the Hub spells it (`apache-2.0`, `mit`, …): converted weights keep it.
        evaluation: the output of `onespike evaluate --json`, for the figures of the card.
        private: whether only the owner can see a new repository.
        api: your `huggingface_hub.HfApi`; a new one by default.
    """
    write_card(Path(folder), license=license, evaluation=evaluation)
    if api is None:
        api = require("huggingface_hub", "transformers", "push_to_hub").HfApi()
    address = api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="A converted network")
    return str(address)


def write_card(folder: Path, *, license: str, evaluation: Mapping[str, Any] | None = None) -> None:
    """Write `README.md` and `config.json` into a run folder."""
    run = storage.load(folder)
    if not run.holds_weights:
        raise UsageError(
            f"{folder}: the run refers to a checkpoint elsewhere, and a repository holds its weights. "
            "Convert without --reference-weights."
        )
    write_atomically(folder / CARD, card(run, license, evaluation))
    config = {"library_name": "onespike", "network": run.network["spec"], "recipe": run.recipe.to_dict()}
    write_atomically(folder / CONFIG, json.dumps(config, indent=1, ensure_ascii=False) + "\n")


def card(run: storage.Run, license: str, evaluation: Mapping[str, Any] | None) -> str:
    """Return the model card of a run, in Markdown."""
    spec, samples = run.network["spec"], run.thresholds.provenance.get("samples")
    head = {"library_name": "onespike", "license": license, "tags": ["spiking-neural-network", "onespike"]}
    parts = [
        "---\n" + "\n".join(f"{k}: {json.dumps(v)}" for k, v in head.items()) + "\n---",
        f"# {spec}, spiking in one timestep",
        f"`{spec}` ({run.network['weights']} weights), converted by [onespike](https://pypi.org/project/onespike/) without "
        f"training: thresholds from {samples} unlabeled inputs. The weights are those of the original network, under its license.",
        "```python\nimport onespike\n\npair = onespike.from_pretrained(\"OWNER/NAME\")\nspiking, original = pair.snn, pair.ann\n```",
        f"Preprocessing: {run.network.get('preprocessing') or 'that of the library'}.",
        _figures(evaluation),
        f"## Recipe\n\n```yaml\n{recipe_text(run.recipe)}```",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _figures(evaluation: Mapping[str, Any] | None) -> str:
    if evaluation is None:
        return "## Figures\n\nNot measured."
    found = task_of(evaluation).headline(evaluation)
    rows = [("original", found.original), ("spiking, T = 1", found.spiking)]
    lines = [f"| network | {found.title} |", "|---|---|"]
    lines += [f"| {name} | {'–' if value is None else f'{value:.2f}'} |" for name, value in rows]
    difference = "" if found.difference is None else f"Difference {found.difference:+.2f}"
    error = "" if found.error is None else f" ± {found.error:.2f} (paired standard error)"
    energy = ["| energy column | ratio | meaning |", "|---|---|---|"]
    energy += [
        f"| {name} | {'–' if ratio is None else f'{ratio:.3f}'} | {meanings()[name]} |"
        for name, ratio in evaluation["energy"].items()
    ]
    return (
        f"## Figures\n\n{evaluation['images']} inputs, λ = {evaluation['scale']}.\n\n" + "\n".join(lines)
        + (f"\n\n{difference}{error}." if difference else "")
        + f"\n\n## Energy beside the original (prices of {evaluation['profile']})\n\n" + "\n".join(energy)
        + f"\n\n{100 * evaluation['analog_share']:.1f} % of the MACs stay analog."
    )  # fmt: skip
