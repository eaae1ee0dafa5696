"""One input through both networks of a run: their answers, the spikes of every site, and the energy."""

from __future__ import annotations

import base64
import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from onespike import runs
from onespike.energy.columns import reading_of
from onespike.energy.ledger import Ledger, or_none
from onespike.energy.metering import metered
from onespike.energy.profiles import Profile, profile
from onespike.errors import OnespikeError, UsageError
from onespike.evaluation.pairwise import pairwise
from onespike.evaluation.side_by_side import at_scale, scale_if_any
from onespike.neurons import Neuron
from onespike.reports.record import block_of
from onespike.runs import NetworkPair
from onespike.sites import Operand
from onespike.tasks import Items

SIDE = 24
"""The largest number of pixels in a site's picture."""
SAMPLES = 6
SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


@dataclass
class Watched(Ledger):
    """A ledger that keeps a small picture of each site's spikes."""

    blockwise = False
    pictures: dict[str, Tensor] = field(default_factory=dict)

    def observe(self, operand: Operand, neuron: Neuron, x: Tensor, fired: Tensor, output: Tensor) -> None:
        self.pictures[str(operand.site)] = picture(fired)


def picture(fired: Tensor, side: int = SIDE) -> Tensor:
    """Return mean spike sizes over the last two axes, at most `side` wide and high, from 0 to 255.

    >>> picture(torch.tensor([[0, 4], [1, 0]]))
    tensor([[  0, 255],
            [128,   0]], dtype=torch.uint8)
    """
    sizes = torch.atleast_2d(fired.abs().float())
    sizes = sizes.reshape(-1, *sizes.shape[-2:]).mean(0)
    small = adaptive_avg_pool2d(sizes[None], (min(side, sizes.shape[0]), min(side, sizes.shape[1])))[0]
    return (255 * (small / small.max().clamp_min(1e-9)).sqrt()).round().to(torch.uint8)


@dataclass
class Session:
    """A run that answers, one input at a time; `folder` is where inputs are written to be read."""

    run: Path
    pair: NetworkPair
    prices: Profile = field(default_factory=profile)
    folder: str | None = None
    lock: Lock = field(default_factory=Lock)

    @property
    def scale(self) -> float | None:
        """Return the run's λ, or None for neurons without one."""
        return scale_if_any(self.pair.snn)

    def samples(self) -> Items | None:
        """Return a few of the run's calibration inputs, if they still exist."""
        try:
            return runs.choose(self.pair.data["source"], SAMPLES, self.pair.loaded.task)
        except OnespikeError:
            return None

    def dropped(self, contents: bytes, suffix: str, scale: float | None = None) -> dict[str, Any]:
        """Return the answer for the contents of a file."""
        if SUFFIX.fullmatch(suffix) is None:
            raise UsageError(f"{suffix!r} is not the end of a file's name. Drop an image, such as a .png.")
        with TemporaryDirectory(dir=self.folder) as folder:
            (Path(folder) / f"input{suffix}").write_bytes(contents)
            try:
                task = self.pair.loaded.task  # a task may read typed text differently from a source
                read = getattr(task, "typed", task.inputs)
                return self.answer(read(folder), 0, scale)
            except OnespikeError as error:  # the user who dropped the file does not know this folder
                raise UsageError(str(error).replace(f"{folder}/", "").replace(folder, "the input")) from error

    def answer(self, items: Items, index: int, scale: float | None = None) -> dict[str, Any]:
        """Run both networks on one of these inputs, with another λ if given."""
        if not 0 <= index < len(items):
            raise UsageError(f"there are {len(items)} inputs, and none with the number {index}.")
        task, loaded = self.pair.loaded.task, self.pair.loaded
        one = dataclasses.replace(items, items=(items[index],))
        ann, snn = self.pair.ann, self.pair.snn
        ledger = Watched()
        with self.lock, at_scale(snn, scale), metered(snn, ledger):
            [(_, _, (expected, actual))] = pairwise((ann, snn), loaded.batches(one, 1))
            example = task.example(one[0], expected, actual, one)
            return {
                "scale": self.scale,
                "answer": {key: example[key] for key in ("label", "pictures", "agree", "text")},
                **spent(ledger, self.pair.recipe.energy, self.prices),
            }


def spent(ledger: Watched, column: str, prices: Profile) -> dict[str, Any]:
    """Return the cost of one input: per site in execution order, and the costs besides spikes."""
    reading, total = reading_of(column).name, ledger.accumulates(column) or 1.0
    parts = ledger.parts(column, prices)
    of_spikes = parts.pop("spikes", 0.0)
    sites = [
        {
            "site": row["site"],
            "block": block_of(row["site"]),
            "spikes": row["spikes per neuron"],
            "share": of_spikes * row[reading] / total if row["drives"] else 0.0,
            "picture": _encoded(ledger.pictures[row["site"]]),
        }
        for row in ledger.table()
        if row["site"] in ledger.pictures
    ]
    return {
        "sites": sites,
        "column": column,
        "ratio": or_none(ledger.ratio(column, prices=prices)),
        "others": parts,
        "original_pj": ledger.original_pj(prices),
        "profile": prices.name,
    }


def _encoded(small: Tensor) -> dict[str, Any]:
    height, width = small.shape
    pixels = base64.b64encode(small.cpu().numpy().tobytes()).decode()
    return {"width": width, "height": height, "bytes": pixels}
