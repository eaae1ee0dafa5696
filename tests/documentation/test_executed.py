"""Every command of README and documentation runs, word for word, on tiny stand-ins for what it names.

A command is given as it is printed, in the order of its page, with options behind it that keep it small. Words that a
reader replaces are replaced. What cannot run here is listed with the reason, and is parsed.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from pages import PAGES, ROOT, commands, of_records
from stand_ins import RUNS, made, small_detector

from image_folders import small_vit
from onespike.cli import main
from onespike.cli.app import app
from onespike.presets import DEFAULT, PRESETS, Preset

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")

ELSEWHERE = {
    "make ": "needs an environment of its own: .github/workflows/ci.yml runs `make test`, tests/test_docs.py builds the pages",
    "python benchmarks/faults": "takes long: tests/test_faults.py runs it in small",
    r"python benchmarks/(?!faults|language\.py)": "takes minutes to hours, or fetches weights",
    "accelerate launch": "starts processes of its own: tests/cli/test_shared_work.py launches two",
    "onespike demo": "takes bundled networks whole: tests/cli/test_run_command.py runs it on few images",
    "onespike reproduce (?!NAME)": "takes long: tests/test_reproduce.py runs every study",
    ".* --storage postgresql": "needs a server: tests/test_postgresql.py starts one",
    "onespike push .* apache": "needs an evaluation of that run: tests/test_hub.py pushes one",
    "onespike doctor run .* 0.12": "is about the bundled network: tests/cli/test_pass_runs.py takes it on few images",
    ".* detectron2:": "needs detectron2: tests/adapters/test_detectron2.py has a stand-in for it",
    "onespike export .* --format nir": "takes a chain, and the stand-in branches: tests/exports/test_nir.py",
    ".* --format all": "makes every form, one by one: tests/exports/test_matrix.py",
}
"""Beginnings of commands → why these do not run here."""
FEW = "--limit 6"
SIZES = {
    "run": "--limit 8 --images 4",
    "convert": FEW,
    "evaluate": FEW,
    "search": "--limit 8 --trials 2",
    "doctor": FEW,
    "report": FEW,
    "reproduce": "--limit 4 --images 4",
    "generate": "--length 4",
    "benchmarks/language.py": "--windows 2 --calibration-windows 2 --length 16 --calibration-length 16",
}
"""Command → options that keep it small; of an option that is given twice the last counts."""
REPLACED = {"MODEL": "timm:vit_small_patch16_224 --weights pretrained", "TEXT": "'the cat'", "FORMAT": "onnx"}
NAMES = {"export": "onnx", "reproduce": "table-percentile"}
TYPED = {"NAME": "onnx", "FORMAT": "onnx", "N": "4", "COLUMN": "binary"}
"""What stands for words that a reader replaces, where a command checks them at once."""
EVERY = list(dict.fromkeys([c for page in PAGES for c in commands(page)] + of_records()))


def whole(line: str) -> bool:
    """The command exists and has these options; whether nothing that it needs is missing."""
    if line.startswith("python"):
        return len(line.split()) > 2
    words = shlex.split(line)
    words = words[words.index("onespike") + 1 :]
    command = typer.main.get_command(app).commands[words[0]]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    assert [w for w in words if w.startswith("--") and w not in options] == []
    try:
        command.make_context(words[0], [TYPED.get(word, word) for word in words[1:]])
    except Exception as error:  # typer has exceptions of its own
        if type(error).__name__ != "MissingParameter":
            raise
        return False
    return True


def lines(page: Path) -> list[str]:
    """The commands of a page that run, without those that a sentence only names; every script of a page once."""
    here = [c for c in commands(page) if not any(re.match(start, c.line) for start in ELSEWHERE)]
    complete = [c.line for c in here if not c.inline or whole(c.line)]
    script = {
        " ".join(line.split()[: 2 if line.startswith("python") else None]): line
        for line in reversed(complete)
    }
    return [line for line in complete if line in script.values()]


@pytest.mark.parametrize("command", EVERY, ids=[command.line[:60] for command in EVERY])
def test_it_can_be_typed(command, tmp_path, monkeypatch):
    """Also what does not run here: commands, targets and scripts are there, with these options."""
    monkeypatch.chdir(tmp_path)
    words = [word for word in shlex.split(command.line) if not re.match("[A-Z_]+=[A-Za-z0-9]+$", word)]
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [w for w in words[1:] if "=" not in w and w not in targets] == []
    elif words[0] == "python":
        script = ROOT / words[1]
        sources = [script] if script.is_file() else sorted(script.rglob("*.py"))
        sources.append(ROOT / "benchmarks" / "records.py")  # which has the option --record of all
        text = "\n".join(s.read_text(encoding="utf-8") for s in sources)
        assert text, words[1]
        assert [w for w in words[2:] if w.startswith("--") and w.partition("=")[0] not in text] == []
    else:
        assert whole(command.line) or command.inline, "it misses what it needs"


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(scope="session")
def stand_in_runs(tmp_path_factory, stand_ins) -> dict[str, Path]:
    """A run of a network for images, and one of a network for text."""
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.recipe import Recipe

    folder, found = tmp_path_factory.mktemp("runs"), {}
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        stories = load_model(f"transformers:{stand_ins / 'stories15M'}", pretrained=True)
        networks = {
            "images": (load_model("timm:vit_base_patch16_224", pretrained=True), "imagenet/calibration"),
            "text": (stories.with_length(16), "text.txt"),
        }
        for kind, (loaded, data) in networks.items():
            items = runs.choose(str(stand_ins / data), 4, loaded.task)
            runs.save(folder / kind, runs.convert_network(loaded, items, Recipe(), batch_size=2))
            found[kind] = folder / kind
    return found


def small(patch: pytest.MonkeyPatch) -> None:
    """Networks of libraries in a tiny size, the default preset with two passes, and nobody at the other end."""
    import timm
    import torchvision.models
    from huggingface_hub import HfApi

    from onespike.reports import record
    from onespike.reports.live import LiveServer

    def interrupted(server: Any) -> None:
        raise KeyboardInterrupt

    patch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # no C++: it takes long
    patch.setattr(timm, "create_model", lambda name, **_: small_vit())
    patch.setattr(torchvision.models, "get_model", lambda name, **_: small_detector())
    patch.setattr(record, "DRAWN_SCALES", (0.5,))
    patch.setattr("onespike.cli.convert.TRIALS", 2)
    few = Preset("two passes", settings={"passes": ("nearest", "center"), "budget": 0.4, "energy": "binary"})
    patch.setitem(PRESETS, DEFAULT, few)
    patch.setattr(LiveServer, "serve_forever", interrupted)
    patch.setattr(HfApi, "create_repo", lambda api, name, **_: f"https://example.org/{name}")
    patch.setattr(HfApi, "upload_folder", lambda api, **_: None)


def words_of(line: str) -> list[str]:
    """What is typed for a command that is printed."""
    words = [w for word in shlex.split(line) for w in shlex.split(REPLACED.get(word, shlex.quote(word)))]
    words = [NAMES.get(words[1], word) if word == "NAME" else word for word in words]
    if words[1] == "export":  # a file bears its format's suffix
        words = ["FILE.onnx" if word == "FILE" else word for word in words]
    short = ["--length", "32"] if "--length" in words and words[0] == "onespike" else []
    return [*words, *short, *SIZES.get(words[1], "").split()]


def prepared(words: list[str], run: Path, own: set[str]) -> None:
    """Runs that the page itself has made are kept, others are new; what a command is to write is not there."""
    places = [words[place + 1] for place, word in enumerate(words) if word in ("--out", "--json")]
    for name in places:
        shutil.rmtree(name, ignore_errors=True)
        Path(name).unlink(missing_ok=True)
    for name in set(words) & set(RUNS) - own - set(places):
        shutil.rmtree(name, ignore_errors=True)
        shutil.copytree(run, name)
    own.update(name for name in places if name.islower())  # RUN is any run


def typed(words: list[str], patch: pytest.MonkeyPatch) -> int:
    """The exit code of a command, in this process."""
    handler = signal.getsignal(signal.SIGINT)
    patch.setattr(sys, "argv", words[words[0] == "python" :])
    try:
        if words[0] == "python":
            patch.syspath_prepend(str(ROOT / "benchmarks"))  # as Python does for a script
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
            return 0
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0)
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("page", [page for page in PAGES if lines(page)], ids=lambda page: page.stem)
def test_commands_run(page, stand_ins, stand_in_runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small(monkeypatch)
    shutil.copytree(stand_ins, tmp_path, dirs_exist_ok=True)
    own: set[str] = set()
    for line in lines(page):
        words = words_of(line)
        text = page.stem == "language" or words[1] == "generate"
        prepared(words, stand_in_runs["text" if text else "images"], own)
        assert typed(words, monkeypatch) == 0, f"{shlex.join(words)}\n{capsys.readouterr().err}"
        assert capsys.readouterr().out, f"{line} says nothing"
