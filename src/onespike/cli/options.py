"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
