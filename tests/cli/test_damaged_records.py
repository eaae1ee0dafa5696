"""Records in a run that were changed and sealed again, or damaged: one line that names the file, never a traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import TEST

from onespike.adapters.checkpoints import read_checkpoint
from onespike.errors import OnespikeError


def seal(record: dict[str, Any]) -> str:
    """As the package does it, but for anyone: a seal protects from damage, not from intent."""
    record = {k: v for k, v in record.items() if k != "sha256"}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return json.dumps({**record, "sha256": digest})


def refusal(read: Callable[[], object]) -> str | None:
    """What an error of ours says; any other one is a failure."""
    try:
        read()
    except OnespikeError as error:
        return str(error)
    return None


@pytest.fixture
def run(tmp_path, vit_run) -> Path:
    shutil.copytree(vit_run, tmp_path / "run")
    return tmp_path / "run"


def variants(value: Any) -> Iterator[Any]:
    """A record with one field missing or mistyped, for every field down to the first of each list or map of sites."""
    if isinstance(value, dict):
        for name in list(value)[:8]:
            if name not in ("version", "sha256"):
                rest = {k: v for k, v in value.items() if k != name}
                yield rest
                yield from (
                    {**rest, name: other} for other in (None, -1.5, "?", [], {}, [[0]], {"a": {"b": 1}})
                )
                yield from ({**rest, name: inner} for inner in variants(value[name]))
    elif isinstance(value, list) and value:
        yield from ([inner, *value[1:]] for inner in (None, "?", [], {}, -7))


def test_fields_of_a_run_that_was_sealed_again(cli, run):
    """Refused in one line, or of no consequence: some fields are only shown."""
    from onespike.runs.storage import load

    record = json.loads((run / "run.json").read_text())
    refused = 0
    for index, variant in enumerate(variants(record)):
        (run / "run.json").write_text(seal(variant))
        if index % 25 == 0:  # the whole command
            result = cli("inspect", run)
            assert result.code == 0 or result.message()
        refused += bool(refusal(lambda: load(run)))
    assert refused > 100


def test_deep_nesting(cli, run):
    (run / "run.json").write_text('{"a":' + "[" * 100_000)
    assert cli("inspect", run).message() == (
        f"{run / 'run.json'}: the file is damaged (invalid JSON: recursion limit exceeded at line 1 column 206). "
        "Convert the network again."
    )


RECORDS = {
    "search/search.json": ("evaluate", "report"),
    "ablation/ablation.json": ("doctor --passes run",),
    "report/report.json": ("report two",),
}
CONTENTS = {
    "cut": "{",
    "deep": "[" * 100_000,
    "list": "[]",
    "empty": seal({}),
    "of another form": seal(
        {"trials": [3], "best": 1, "objective": [], "images": {}, "energy": 5, "used": 0, "source": 1, "ablations": [{"rows": 1}],
         "version": 1, "network": "x", "recipe": 3, "evaluation": []}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_other_records_of_a_run(cli, run, tmp_path, name):
    (run / name).parent.mkdir()
    for contents in CONTENTS.values():
        (run / name).write_text(contents)
        for command in RECORDS[name]:
            two = command == "report two"
            more = (run, "--out", tmp_path / "out") if two else ("--data", TEST, "--limit", 2)
            assert (
                cli(command.removesuffix(" two"), run, *more)
                .message()
                .startswith(f"{run / name}: the file is damaged (")
            )
    assert not (tmp_path / "out").exists()


def test_rows_of_an_ablation_that_were_changed_and_sealed_again(cli, run):
    words = ("doctor", run, "--data", TEST, "--limit", 2, "--passes", "nearest")
    assert cli(*words).code == 0
    file = run / "ablation" / "ablation.json"
    record = json.loads(file.read_text())
    row = record["ablations"][0]["rows"][0]
    for changed in ({"ann": {}}, {"snn": {"top1": "much"}}, {"kl": "little"}):
        rows = [row | changed, *record["ablations"][0]["rows"][1:]]
        file.write_text(seal({"ablations": [record["ablations"][0] | {"rows": rows}]}))
        message = cli(*words).message()
        assert message.startswith(f"{file}: ") and message.endswith("Remove it to measure again.")


def test_measurements_that_were_kept(cli, tmp_path):
    words = ("reproduce", "table-complexity", "--limit", 2, "--out", tmp_path)
    for contents in (*CONTENTS.values(), seal({"identity": {}, "measured": {"a": 3}})):
        (tmp_path / "measured.json").write_text(contents)
        assert cli(*words).message().startswith(f"{tmp_path / 'measured.json'}: the file is damaged (")


def test_a_measurement_that_cannot_be_drawn(tmp_path):
    from matplotlib.figure import Figure

    from onespike.studies.reproduce.study import Study, run_study

    def draw(rows):
        figure = Figure()
        figure.subplots().plot([row["counts"] for row in rows])
        return figure

    study = Study("s", "t", "n", lambda bench: bench.finished["rows"], draw, "")
    kept = {"rows": [{"counts": 1.0}, {"counts": ["a", "b"]}]}
    bench = SimpleNamespace(
        folder=tmp_path,
        finished=kept,
        identity={},
        loaded=SimpleNamespace(spec="n"),
        sets=dict,
        test=SimpleNamespace(source="bundled:images"),
    )
    message = refusal(lambda: run_study(study, bench))
    assert message is not None and message.startswith(f"{tmp_path / 'measured.json'}: ")
    assert "ValueError" in message and message.endswith("Remove it to measure again.")
    assert not list(tmp_path.iterdir())


def test_a_damaged_study(cli, run):
    study = run / "search" / "study.db"
    study.parent.mkdir()
    words = ("search", run, "--data", TEST, "--limit", 4, "--trials", 2, "--resume")
    study.write_text("not a database, but long enough to be taken for one" * 100)
    assert cli(*words).message().startswith("search: the storage sqlite:… cannot be used (")
    study.unlink()
    assert cli(*words).code == 0
    with closing(sqlite3.connect(study)) as opened, opened:
        opened.execute("UPDATE trials SET state = 'ODD' WHERE number = 0")
    assert cli(*words, "--trials", 3).message().startswith("search: the study onespike-")


def test_legacy_checkpoints_cut_or_damaged_anywhere(tmp_path):
    file = tmp_path / "w.pth"
    torch.save({"a": torch.ones(3)}, file, _use_new_zipfile_serialization=False)
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        for damaged in (whole[:place], whole[:place] + b"\xff\x8a\x00" + whole[place + 3 :]):
            file.write_bytes(damaged)
            assert (refusal(lambda: read_checkpoint(file)) or f"{file}: ").startswith(f"{file}: ")


def test_an_ablation_without_the_error_of_its_difference_is_shown():
    from onespike.cli.doctor import _cells
    from onespike.studies.ablate import Row
    from onespike.tasks import Headline

    row = Row("none", (), {"kl": 0.25, "energy": {}}, Headline("top-1 accuracy, %", 51.5, 50.0))
    assert _cells(row, ["counts"]) == ("none", "50.00", "−1.50", "0.2500", "–")
