"""`onespike generate`: text written by a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word
from onespike.errors import UsageError, unknown


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
    from onespike.cli import show
    from onespike.energy.profiles import profile as prices_of
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
    show.written(written.prefill, written.decode, column)
    return "serve", run
