"""`onespike generate`: text written by a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word
from onespike.errors import UsageError

if TYPE_CHECKING:
    from onespike.evaluation.generation import Spent


@command(
    'onespike generate run "Once upon a time" --stream',
    'onespike generate run "The cat" "One day" --json text.json',
    length=Word("N", "The largest number of tokens to write."),
)
def generate(
    run: Path,
    prompts: list[str],
    *,
    length: int = 64,
    stream: bool = False,
    original: bool = False,
    temperature: float = 0.0,
    seed: int | None = None,
    cache: str = "dynamic",
    energy: str | None = None,
    profile: str | None = None,
    device: str = "cpu",
    json_file: Path | None = None,
) -> Next:
    """Continue prompts with the spiking network.

    Spikes and energy are stated per token: for reading the prompts (prefill), and for writing, one token at a time
    from a cache (decode). Several prompts are written in one batch, shorter ones padded on the left.
    """
    from onespike import runs
    from onespike.energy.columns import OF_ALL_MACS
    from onespike.energy.profiles import profile as prices_of
    from onespike.errors import unknown
    from onespike.evaluation.generation import CACHES, write
    from onespike.tasks import Language

    if length < 1:
        raise UsageError(f"--length must be at least 1, not {length}.")
    if temperature < 0:
        raise UsageError(f"--temperature must not be below 0, and is {temperature:g}.")
    if cache not in CACHES:
        raise unknown("cache", cache, CACHES)
    if stream and len(prompts) > 1:
        raise UsageError("--stream shows one text as it is written. Give one text, or leave it out.")
    pair = runs.load(run, device=device)
    task = pair.loaded.task
    if not isinstance(task, Language):
        raise UsageError(
            f"generate: this network {task.verb}, and writes no text. Leave it to a language model."
        )
    tokenizer: Any = task.tokenizer
    batch, column, profile = task.prompts(prompts, length), energy or pair.recipe.energy, prices_of().name
    streamer = None
    if stream:
        from transformers import TextStreamer  # a network that writes was loaded with it

        streamer = TextStreamer(tokenizer.tokenizer, skip_special_tokens=True)
    drawn: Any = {"temperature": temperature, "seed": seed or 0}
    written = write(pair.snn, batch, length, column=column, cache=cache, streamer=streamer, **drawn)
    texts, other = [tokenizer.decode(ids, bare=True) for ids in written.ids.tolist()], []
    if original:
        moved = {k: v.to(written.ids.device) for k, v in batch.items()}
        answers = pair.ann.generate(**moved, max_new_tokens=length, do_sample=False, disable_compile=True)  # type: ignore[operator]
        other = [tokenizer.decode(ids, bare=True) for ids in answers.tolist()]
    record = {
        "prompts": prompts, "texts": texts, "original": other, "column": column, "profile": profile,
        "prefill": dataclasses.asdict(written.prefill), "decode": dataclasses.asdict(written.decode),
        "forwards": [dataclasses.asdict(spent) for spent in written.forwards],
    }  # fmt: skip
    output.figures(json_file, record)
    for text in (*([] if stream else texts), *(f"original: {text}" for text in other)):
        output.line(text, "")
    cells = [_cells("prefill", written.prefill, column), _cells("decode", written.decode, column)]
    energies = "µJ/token", "original µJ/token", f"ratio ({column})", "of what spikes"
    output.rows(("", "tokens", "spikes/token", *energies, "tokens/s"), cells, left=(0,))
    output.line(f"ratio {OF_ALL_MACS}; prices of {profile}; tokens/s with counting, which takes most time")
    return "serve", run


def _cells(name: str, spent: Spent, column: str) -> tuple[str, ...]:
    from onespike.energy.columns import of_what_spikes
    from onespike.reports.tables import figure

    tokens = spent.tokens
    if not tokens:
        return name, "0", *"––––––"
    each, original = spent.energy_pj / tokens / 1e6, spent.original_pj / tokens / 1e6
    spiking = of_what_spikes(column, each / original, 1 - spent.spiking_pj / spent.original_pj)
    energies = f"{each:.4g}", f"{original:.4g}", f"{each / original:.3f}", figure(spiking, 3)
    return name, str(tokens), f"{spent.spikes / tokens:,.0f}", *energies, f"{tokens / spent.seconds:.1f}"
