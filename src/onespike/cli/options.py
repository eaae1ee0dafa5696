"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onespike.errors import UsageError

Data = Annotated[
    str, typer.Option(metavar="DIR", help="Folder with one sub-folder a class, or bundled:cifar10-test.")
]
Annotations = Annotated[
    Path | None, typer.Option(metavar="FILE", help="COCO's instances JSON; --data is then its image folder.")
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="Use N images, evenly spaced over the sorted list.")
]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Images in one forward pass.")]
Device = Annotated[str, typer.Option(metavar="D", help="cpu, cuda, cuda:1, mps, …")]
DeviceMap = Annotated[
    str | None,
    typer.Option(metavar="MAP", help="auto, balanced, sequential or a JSON file: accelerate's device maps."),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to this file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `onespike convert` wrote.")]
Mean = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Feed the network with this mean, not its library's.")
]
Std = Annotated[str | None, typer.Option(metavar="R,G,B", help="And with this standard deviation.")]


def numbers(name: str, text: str | None) -> tuple[float, ...]:
    """`0.5,0.5,0.5` as numbers; mean and deviation are given together."""
    try:
        return tuple(float(part) for part in (text or "").split(","))
    except ValueError:
        raise UsageError(
            f"--{name} takes three numbers, not {text!r}. Give both: --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5."
        ) from None
