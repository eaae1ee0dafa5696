"""The Hub form: a run folder with a model card is a repository, and a repository is a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onespike.adapters.base import first_line, require
from onespike.energy.columns import DEFINITION, meanings
from onespike.errors import LoadError, UsageError
from onespike.reports.markdown import CITATION, energy, scores
from onespike.runs import storage
from onespike.runs.own import own_class
from onespike.runs.recipe_file import recipe_text
from onespike.runtime.atomic import write_atomically

CARD, CONFIG = "README.md", "config.json"


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
    write_card(Path(folder), license=license, evaluation=evaluation, repository=repository)
    if api is None:
        api = require("huggingface_hub", "transformers", "push_to_hub").HfApi()
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="A converted network")
    except Exception as error:  # any exception of a hub client: offline, no permission
        raise LoadError(
            f"{repository}: the run cannot be uploaded ({first_line(error)}). "
            "Check the name, your token and the network connection, then push again."
        ) from error
    return str(address)


def write_card(
    folder: Path,
    *,
    license: str,
    evaluation: Mapping[str, Any] | None = None,
    repository: str | None = None,
) -> None:
    """Write `README.md` and `config.json` into a run folder."""
    run = storage.load(folder)
    if not run.holds_weights:
        raise UsageError(
            f"{folder}: the run refers to a checkpoint elsewhere, and a repository holds its weights. "
            "Convert without --reference-weights."
        )
    write_atomically(folder / CARD, card(run, license, evaluation, repository))
    config = {"library_name": "onespike", "network": run.network["spec"], "recipe": run.recipe.to_dict()}
    write_atomically(folder / CONFIG, json.dumps(config, indent=1, ensure_ascii=False) + "\n")


def card(
    run: storage.Run, license: str, evaluation: Mapping[str, Any] | None, repository: str | None = None
) -> str:
    """Return the model card of a run, in Markdown; without a repository it is loaded from its folder."""
    spec, samples = run.network["spec"], run.thresholds.provenance.get("samples")
    head = {"library_name": "onespike", "license": license, "tags": ["spiking-neural-network", "onespike"]}
    where = (
        ""
        if repository
        else "In the folder of this card (a repository is loaded by its name in the same way):\n\n"
    )
    own = own_class(run)
    made, given = (f"model = ...  # a {own}, with any weights\n", ", model") if own else ("", "")
    record = {
        "network": run.network,
        "recipe": run.recipe.to_dict(),
        "energy": run.recipe.energy,
        "energy_columns": meanings(),
        "energy_definition": DEFINITION,
    }
    parts = [
        "---\n" + "\n".join(f"{k}: {json.dumps(v)}" for k, v in head.items()) + "\n---",
        f"# {spec}, spiking in {'one timestep' if run.recipe.steps == 1 else f'{run.recipe.steps} timesteps'}",
        f"`{spec}` ({run.network['weights']} weights), converted by [onespike](https://pypi.org/project/onespike/) without "
        f"training: thresholds from {samples} unlabeled inputs. The weights are those of the original network, under its license.",
        f"{where}```python\nimport onespike\n\n{made}pair = onespike.from_pretrained({json.dumps(repository or '.')}{given})\n"
        "spiking, original = pair.snn, pair.ann\n```",
        f"Preprocessing: {run.network.get('preprocessing') or ('not stated' if own else 'that of the library')}.",
        *(["## Figures", "Not measured."] if evaluation is None else scores(record, evaluation)),
        *([] if evaluation is None else [energy(record, evaluation)]),
        f"## Recipe\n\n```yaml\n{recipe_text(run.recipe)}```",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
