"""What the documentation takes from the library itself: figures and help pages, made while it is built.

`{{ figure: NAME }}` becomes a drawing, `{{ help: COMMAND }}` the command's help, `{{ commands }}` the list of commands.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from onespike.reports import plots
from onespike.spikes import SpikeCode, fire_function, mixed_levels


def fire() -> Any:
    """The fire function G of eq. 12: consecutive levels, then a sparse tail."""
    made, (near, far) = plots.figure(10.0, 3.6, columns=2)
    levels = mixed_levels(8)
    for axes, end in ((near, 14.0), (far, 300.0)):
        x = torch.linspace(0, end, 3000)
        axes.plot(x, x, color=plots.GRAY, ls="--", label="activation")
        axes.plot(x, fire_function(levels, "paper")(x + 0.5), color=plots.BLUE, label="G, paper")
        axes.plot(x, fire_function(levels, "nearest")(x + 0.5), color=plots.ORANGE, lw=1, label="G, nearest")
        axes.set_xlabel("activation, in steps λθ")
        axes.set_ylabel("spike (integer)")
    near.legend(frameon=False)
    return made


def scale() -> Any:
    """Signal to noise of coding Gaussian activations over λ: the optimum the search looks for."""
    made, axes = plots.figure(6.4, 3.6)
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    theta, scales = x.abs().quantile(0.98), torch.logspace(-3, 0, 60)
    for size, color in ((4, plots.ORANGE), (8, plots.BLUE)):
        levels = mixed_levels(size)
        codes = [SpikeCode(theta, theta, fire_function(levels), scale) for scale in scales]
        missed = [x - code.decode(code.fire(x)) for code in codes]
        noise = [10 * float((x.square().sum() / error.square().sum()).log10()) for error in missed]
        axes.plot(scales, noise, color=color, label=f"M = {size}, largest level {levels[-1]}")
    axes.set_xscale("log")
    axes.set_xlabel("λ")
    axes.set_ylabel("signal to noise, dB")
    axes.legend(frameon=False)
    return made


FIGURES = {"fire": fire, "scale": scale}


def _help(name: str) -> str:
    import typer.testing

    from onespike.cli.app import app

    shown = typer.testing.CliRunner().invoke(
        app, [*name.split(), "--help"], terminal_width=100, prog_name="onespike"
    )
    return f"```text\n{shown.output.strip()}\n```"


def _commands() -> str:
    from onespike.cli.app import app

    names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    return "\n\n".join(f"## onespike {name}\n\n{_help(name)}" for name in names)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for each page: a line of a command never ends within an option, between its hyphens."""
    found = re.compile(r"(<[^>]*>)|(?<![\w-])--[a-z][\w-]*")
    return found.sub(lambda part: part[0] if part[1] else f'<span class="option">{part[0]}</span>', html)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""

    def figure(match: re.Match[str]) -> str:
        name = match[1]
        return f"<figure>{plots.svg(FIGURES[name](), name)}</figure>"

    # the pages hold no sources: a link to a line of one becomes its name
    markdown = re.sub(r"\[([^\]]+)\]\(\.\./(src/[\w/]+\.py)#L(\d+)\)", r"\1 (`\2`, line \3)", markdown)
    markdown = re.sub(r"\{\{ figure: (\w+) \}\}", figure, markdown)
    markdown = re.sub(r"\{\{ help: ([\w ]+) \}\}", lambda match: _help(match[1]), markdown)
    return markdown.replace("{{ commands }}", _commands()) if "{{ commands }}" in markdown else markdown
