"""Files that carry code: a canary file tells whether any of it ran."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from commands import Outcome, Words, copy_of, run
from damaged import Fault
from stage import CONVERT


class Bomb:
    """Calls a function as soon as it is unpickled."""

    def __init__(self, function: Callable[..., Any], *values: Any) -> None:
        self.call = function, values

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def bombs(canary: Path) -> list[Bomb]:
    """Ways by which a pickle could touch a file, by modules that are loaded anyway."""
    import torch

    touch, python = f"touch {canary}", f"open({str(canary)!r}, 'w').close()"
    return [
        Bomb(os.system, touch),
        Bomb(eval, python),
        Bomb(exec, python),
        Bomb(open, str(canary), "w"),
        Bomb(Path.touch, canary),
        Bomb(subprocess.call, ["touch", str(canary)]),
        Bomb(os.open, str(canary), os.O_CREAT | os.O_WRONLY),
        Bomb(torch.save, {}, str(canary)),
        Bomb(shutil.copy, __file__, str(canary)),
        Bomb(getattr(pickle, "loads"), pickle.dumps(Bomb(os.system, touch))),  # noqa: B009
    ]


def container(payload: Any, form: str) -> bytes:
    """A payload in one of the forms that checkpoints have."""
    import torch

    file = io.BytesIO()
    if form == "zip":
        torch.save(payload, file)
    elif form == "legacy":
        torch.save(payload, file, _use_new_zipfile_serialization=False)
    elif form == "bare":
        pickle.dump(payload, file, protocol=2)
    else:  # an archive with a second pickle, which some readers prefer
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(payload, protocol=2))
            archive.writestr("archive/constants.pkl", pickle.dumps(payload, protocol=2))
            archive.writestr("archive/version", "3\n")
    return file.getvalue()


FORMS = ("zip", "legacy", "bare", "archive")
SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
WRAPS: tuple[Callable[[Any], Any], ...] = (
    lambda b: b,
    lambda b: {"state_dict": {"a": b}},
    lambda b: [b, {"model": b}],
)


def checkpoint(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, Words]:
    bomb = (found := bombs(folder / "canary"))[number % len(found)]
    form, suffix, wrap = rng.choice(FORMS), rng.choice(SUFFIXES), rng.choice(WRAPS)
    (folder / f"evil{suffix}").write_bytes(container(wrap(bomb), form))
    name = getattr(bomb.call[0], "__qualname__", "?")
    return f"{form} checkpoint {suffix} calls {name}", (
        *CONVERT[:2],
        "--weights",
        f"evil{suffix}",
        *CONVERT[4:],
        "--out",
        "new",
    )


def network_folder(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, Words]:
    """A transformers folder with pickled weights, or with code of its own."""
    net = folder / "net"
    bomb = rng.choice(bombs(folder / "canary"))
    if number % 2:
        (net / "model.safetensors").unlink()
        (net / "pytorch_model.bin").write_bytes(container({"a": bomb}, rng.choice(FORMS)))
        return "a network folder with a pickle", (*CONVERT, "--out", "new")
    code = f"open({str(folder / 'canary')!r}, 'w').close()\n"
    for name in ("modeling_evil", "configuration_evil", "image_processing_evil", "__init__"):
        (net / f"{name}.py").write_text(code, encoding="utf-8")
    config = json.loads((net / "config.json").read_text(encoding="utf-8"))
    config |= {
        "auto_map": {
            "AutoConfig": "configuration_evil.Evil",
            "AutoModelForImageClassification": "modeling_evil.Evil",
        },
        "model_type": rng.choice(("vit", "evil")),
    }
    (net / "config.json").write_text(json.dumps(config), encoding="utf-8")
    processor = json.loads((net / "preprocessor_config.json").read_text(encoding="utf-8"))
    processor["auto_map"] = {"AutoImageProcessor": "image_processing_evil.Evil"}
    (net / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return "a network folder with code", (*CONVERT, "--out", "new")


def image(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, Words]:
    """PostScript under an image's name."""
    canary = folder / "canary"
    script = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n({canary}) (w) file closefile\n(%pipe%touch {canary}) (w) file\n"
    (folder / "cal" / "0.png").write_text(script, encoding="utf-8")
    return "PostScript as an image", (*CONVERT, "--out", "new")


def run_record(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, Words]:
    """A run that names a pickle as its weights, its record sealed."""
    import hashlib

    from mutate import checksum

    shutil.copytree(stage / "run", folder / "run")
    data = container({"a": rng.choice(bombs(folder / "canary"))}, rng.choice(FORMS))
    place = rng.choice(("run/weights.pth", "run/weights.safetensors", "run/network/pytorch_model.bin"))
    (folder / place).write_bytes(data)
    record = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    name = place.removeprefix("run/")
    record["files"].pop("weights.safetensors")
    record["files"][name] = hashlib.sha256(data).hexdigest()
    record["network"]["weights_file"] = name
    record["sha256"] = checksum(record)
    (folder / "run" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return f"a run whose weights are a pickle, {place}", ("inspect", "run")


LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void ran(void) { close(open(CANARY, O_CREAT | O_WRONLY, 0644)); }
void onespike_fire(void) {}
void onespike_count(void) {}
"""


def planted(folder: Path, number: int) -> tuple[str, Outcome] | None:
    """A kernel library that somebody else put into the cache; None without a compiler, or unless root."""
    compiler = shutil.which("cc")
    if compiler is None or os.geteuid() != 0:
        return None
    cache = folder / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    words = [sys.executable, "-m", "onespike", *CONVERT]

    def convert(out: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, "--out", out], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    convert("first")
    libraries = list(cache.rglob("*.so"))
    source = folder / "planted.c"
    source.write_text(LIBRARY, encoding="utf-8")
    for library in libraries:
        library.unlink()
        flag = f'-DCANARY="{folder / "canary"}"'
        subprocess.run([compiler, "-shared", "-fPIC", flag, str(source), "-o", str(library)], check=True)
        if number % 3 == 0:
            os.chown(library, 12345, 12345)
        elif number % 3 == 1:
            library.chmod(0o777)
        else:  # the folder belongs to another user, who may put there what he likes
            os.chown(library.parent, 12345, 12345)
            library.parent.chmod(0o777)
    ended = convert("second")
    what = ("a library of another user", "a library that all may write", "a cache folder of another user")
    return f"{what[number % 3]} ({len(libraries)} planted)", Outcome(
        ended.returncode, ended.stdout, ended.stderr, 0.0
    )


KINDS = (checkpoint, checkpoint, checkpoint, network_folder, checkpoint, run_record, image)
PLANTED = 3
COUNT = 63 + PLANTED


def case(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, list[Fault]]:
    """One file with code in it, and the command that reads it."""
    copy_of(stage, folder, ("net", "cal"))
    words: Words = CONVERT
    if number < PLANTED:
        found = planted(folder, number)
        if found is None:
            return "no compiler, or not root: nothing planted", []
        what, outcome = found
    else:
        what, words = KINDS[number % len(KINDS)](stage, folder, number, rng)
        outcome = run(words, folder)
    kind = "executed" if (folder / "canary").exists() else outcome.fault()
    return what, [] if kind is None else [Fault(kind, what, words, outcome.tail)]
