"""The Hub form: a run folder with a model card is a repository, and a repository is a run folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onespike.errors import LoadError, first_line, require
from onespike.reports.pages import in_markdown, values
from onespike.runs import storage
from onespike.runs.pair import class_of
from onespike.runs.recipe_text import recipe_text
from onespike.runtime.atomic import write_atomically

CARD = "README.md"


def push_to_hub(
    folder: Path | str,
    repository: str,
    *,
    license: str,
    evaluation: Mapping[str, Any] | None = None,
    private: bool = True,
    api: Any = None,
) -> str:
    """Write the model card into a run folder and upload it to the repository `OWNER/NAME`; return its address.

    The license is that of the original network, as the Hub spells it (`apache-2.0`, `mit`, …): converted weights keep it.
    The evaluation, the output of `onespike evaluate --json`, gives the figures of the card. `api` may be your own
    `huggingface_hub.HfApi`.
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
    folder: Path, *, license: str, evaluation: Mapping[str, Any] | None = None, repository: str | None = None
) -> None:
    """Write `README.md` and, where there is none, `config.json` into a run folder; without a repository it is loaded from its folder."""
    run = storage.load(folder)
    recipe, spec = run.recipe, run.network["spec"]
    about = {"network": run.network, "recipe": recipe.to_dict(), "energy": recipe.energy}
    record = {**about, "evaluation": evaluation, "data": None}
    head = {"library_name": "onespike", "license": license, "tags": ["spiking-neural-network", "onespike"]}
    text = in_markdown(
        "card.md", **values([record]), head=head, spec=spec, recipe=recipe, recipe_text=recipe_text(recipe),
        samples=run.thresholds.provenance.get("samples"), repository=repository, own=class_of(run),
    )  # fmt: skip
    write_atomically(folder / CARD, text)
    if storage.CONFIG in run.files:  # by which transformers loads the run
        return
    config = {"library_name": "onespike", "network": spec, "recipe": recipe.to_dict()}
    write_atomically(folder / storage.CONFIG, json.dumps(config, indent=1, ensure_ascii=False) + "\n")
