"""Networks that read text on the command line: convert, evaluate, search, doctor, report, compare; and bad input."""

from __future__ import annotations

import importlib
import io
import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from language_folders import bert, llama, text, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    return llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Path:
    return text(tmp_path_factory.mktemp("text") / "story.txt", 0, 127)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return text(tmp_path_factory.mktemp("text") / "other.txt", 1, 95)


@pytest.fixture(scope="module")
def run(tmp_path_factory, network, story) -> Path:
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.recipe import Recipe

    folder = tmp_path_factory.mktemp("runs") / "llama"
    loaded = load_model(f"transformers:{network}", pretrained=True).with_length(16)
    pair = runs.convert_network(loaded, runs.choose(str(story), None, loaded.task), Recipe(), batch_size=4)
    runs.save(folder, pair)
    return folder


def test_convert_with_passes_and_evaluate(cli, network, story, other, tmp_path):
    made = cli(
        f"convert transformers:{network} --weights pretrained --calibrate {story} --length 16 "
        "--batch-size 4 --passes nearest,layout,center,allocate --energy binary --out "
        f"{tmp_path / 'run'}",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert "calibrated on  8 windows of" in made.out and "windows of 16 tokens" in made.out
    assert "sites          22 of 23 spike; analog: lm_head:linear0_input" in made.out
    file = tmp_path / "result.json"
    found = cli("evaluate", tmp_path / "run", "--data", other, "--batch-size", 2, "--json", file)
    assert found.code == 0, found.err
    record = json.loads(file.read_text())
    assert (record["task"], record["windows"], record["tokens"]) == ("language", 6, 96)
    assert 0 < record["kl"] < 1 and record["snn"]["perplexity"] > 1
    assert 0.05 < record["head_share"] < 0.2
    assert "perplexity per token" in found.out and "energy per token: original" in found.out
    assert "6 windows of 16 tokens; per token as GPTQ counts, per word as lm-eval does" in found.out


def test_overlap_is_named_by_contents(cli, run, story, tmp_path):
    copy = tmp_path / "renamed.txt"
    shutil.copy(story, copy)
    found = cli("evaluate", run, "--data", copy, "--limit", 3)
    assert "note: 3 of these windows were used for calibration, first renamed.txt[0:16]" in found.out


def test_search_doctor_report_and_compare(cli, run, other, tmp_path):
    mine = tmp_path / "run"
    shutil.copytree(run, mine)
    found = cli("search", mine, "--data", other, "--trials", 3, "--sampler", "grid", "--batch-size", 3)
    assert found.code == 0 and "best λ" in found.out, found.err
    found = cli(f"search {mine} --data {other} --trials 2 --objective perplexity --sampler grid")
    assert found.code == 0 and "perplexity per token" in found.out, found.err
    found = cli("doctor", mine, "--data", other, "--images", 4, "--batch-size", 2)
    assert found.code == 0 and "perplexity per token: original" in found.out, found.err
    found = cli("report", mine, "--data", other, "--batch-size", 3)
    assert found.code == 0, found.err
    assert (
        "next tokens are the same; furthest apart after token"
        in (mine / "report" / "report.html").read_text()
    )
    found = cli("report", run, mine, "--data", other, "--out", tmp_path / "compared")
    assert found.code == 0, found.err
    assert "SNN perplexity" in (tmp_path / "compared" / "compare.md").read_text()


def test_verify_and_integer_comparison(cli, run, other):
    found = cli("evaluate", run, "--data", other, "--limit", 4, "--batch-size", 2, "--compare")
    assert found.code == 0 and " w8a8\n" in found.out, found.err


def test_generate(cli, run, tmp_path):
    file = tmp_path / "written.json"
    found = cli("generate", run, "once upon the time", "--length", 5, "--original", "--json", file)
    assert found.code == 0, found.err
    assert found.out.startswith("once upon the time ") and "original: once upon the time" in found.out
    assert found.err.endswith(f"next: onespike serve {run}\n")
    record = json.loads(file.read_text())
    assert record["prefill"]["tokens"] == 5 and record["decode"]["tokens"] <= 4  # <s> and four words
    assert 0 < record["decode"]["energy_pj"] < record["decode"]["original_pj"]
    streamed = cli("generate", run, "once upon the time", "--length", 5, "--stream")
    assert streamed.out.splitlines()[0] == record["texts"][0]
    both = cli(
        "generate",
        run,
        "the cat",
        "once upon the time",
        "--length",
        3,
        "--cache",
        "static",
        "--json",
        file,
    )
    assert both.code == 0, both.err
    record = json.loads(file.read_text())
    assert record["prefill"]["tokens"] == 8  # padding is none of them
    assert [
        text.startswith(start) for text, start in zip(record["texts"], ("the cat", "once upon"), strict=True)
    ] == [True, True]


def test_a_terminal_shows_the_text_and_the_figures_below_it(monkeypatch):
    """Both streams end on one screen, here of 16 columns and 3 lines."""
    from onespike.cli.generate import _Stream
    from onespike.evaluation.generation import Spent

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    class Letters:
        def said(self, ids):
            return "".join(map(chr, ids))

    both = Terminal()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    stream = _Stream(Letters())
    for place, letter in enumerate("once upon a time, the cat sat on the mat"):
        if place:
            stream.took(Spent(tokens=1, spikes=7, energy_pj=2e6, original_pj=9e6, seconds=1.0))
        stream.put(torch.tensor([ord(letter)]))
    assert screen(both.getvalue()) == [", the cat sat on", " the mat", "7 spikes, 2 µJ"]
    stream.end()
    assert "spikes" not in "".join(screen(both.getvalue()))


def screen(text: str) -> list[str]:
    """What a terminal of 16 columns and 3 lines shows of this, as far as we use one."""
    lines, row, column, kept = [""] * 3, 0, 0, (0, 0)

    def down() -> None:
        nonlocal row
        if row == 2:
            lines.append("")
            lines.pop(0)
        row = min(row + 1, 2)

    for part in re.findall(r"\033\[?.|.|\n", text):
        match part:
            case "\r":
                column = 0
            case "\n":
                down()
                column = 0
            case "\033D":
                down()
            case "\033[A":
                row = max(row - 1, 0)
            case "\033[B":
                row = min(row + 1, 2)
            case "\0337":
                kept = row, column
            case "\0338":
                row, column = kept
            case "\033[J" | "\033[K":
                lines[row] = lines[row][:column]
                if part == "\033[J":
                    lines[row + 1 :] = [""] * (2 - row)
            case _:
                if column == 16:
                    down()
                    column = 0
                lines[row] = f"{lines[row].ljust(column)[:column]}{part}{lines[row][column + 1 :]}"
                column += 1
    return lines


def test_what_cannot_be_generated(cli, run, vit_run):
    def refused(*words):
        return cli("generate", *words).message()

    assert refused(vit_run, "a").startswith("generate: this network classifies, and writes no text.")
    assert "the network's context of 32 is full" in refused(run, "the cat", "--length", 30)
    assert "Give one text" in refused(run, "a", "b", "--stream")
    assert "unknown cache 'fixed'" in refused(run, "a", "--cache", "fixed")
    assert "--length must be at least 1" in refused(run, "a", "--length", 0)


def test_questions_of_the_harness(cli, run, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
    rows = [{"q": "the cat sat on the", "choices": ["mat", "ball"], "gold": i % 2} for i in range(6)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "cats.yaml").write_text(
        f"""task: cats
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "questions.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc}}]
"""
    )
    file = tmp_path / "result.json"
    found = cli("evaluate", run, "--tasks", "cats", "--data", tmp_path, "--json", file)
    assert found.code == 0, found.err
    (row,) = json.loads(file.read_text())["tasks"]
    assert (row["task"], row["metric"], row["ann"], row["questions"]) == ("cats", "acc", 0.5, 6)
    assert row["error"] is not None and "cats  acc" in found.out
    few = partial(
        importlib.import_module("lm_eval.tasks").TaskManager,
        include_path=str(tmp_path),
        include_defaults=False,
    )
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **_: few())  # not thousands
    assert "has no task 'dogs'" in cli("evaluate", run, "--tasks", "dogs").message()
    assert "Give one of them" in cli("evaluate", run, "--tasks", "cats", "--data", "a").message()
    assert cli("evaluate", run).message().startswith("evaluate: there is nothing to measure on.")


def test_an_encoder_embeds(cli, tmp_path):
    rows = [("the cat sat", "the cat ran", 0.8), ("red ball", "blue ball on the mat", 0.6),
            ("once upon the time", "there was a dog", 0.1), ("a b c", "d e", 0.3)]  # fmt: skip
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    made = cli(
        f"convert transformers:{bert(tmp_path / 'net')} --weights pretrained --calibrate "
        f"{tmp_path / 'pairs.tsv'} --passes nearest,allocate --out {tmp_path / 'run'}",
    )  # fmt: skip
    assert made.code == 0, made.err
    file = tmp_path / "result.json"
    found = cli(f"evaluate {tmp_path / 'run'} --data {tmp_path / 'pairs.tsv'} --batch-size 3 --json {file}")
    assert found.code == 0, found.err
    record = json.loads(file.read_text())
    assert (record["task"], record["texts"], record["pairs"]) == ("embedding", 8, 4)
    assert 0.7 < record["cosine"] <= 1 and record["ann"]["spearman"] is not None
    assert "cosine with the original" in found.out


def test_bad_input_is_one_line(cli, network, story, run, tmp_path):
    def refused(*words):
        return cli(*words).message()

    convert = (
        "convert",
        f"transformers:{network}",
        "--weights",
        "pretrained",
        "--out",
        tmp_path / "run",
        "--calibrate",
    )
    (tmp_path / "empty.txt").write_text("\n")
    assert refused(*convert, tmp_path / "empty.txt").endswith(
        "there is no text in it. Give a file with some."
    )
    (tmp_path / "short.txt").write_text("the cat")
    assert "3 tokens, fewer than one window of 32" in refused(*convert, tmp_path / "short.txt")
    (tmp_path / "ids.jsonl").write_text('{"input_ids": [31, 32]}')
    assert "token 1 has the number 32, and the network knows 32 tokens" in refused(
        *convert, tmp_path / "ids.jsonl"
    )
    assert "--length must be from 2 to 32" in refused(*convert, story, "--length", 64)
    assert refused(*convert, story, "--preprocess", "mean=0,0,0", "--preprocess", "std=1,1,1").endswith(
        "Leave them out."
    )
    assert "has no use for boxes" in refused("evaluate", run, "--data", story, "--annotations", "a.json")
    assert not (tmp_path / "run").exists()


def test_run_takes_windows_of_another_length(cli, network, story, tmp_path):
    words = (
        "run",
        f"transformers:{network}",
        "--weights",
        "pretrained",
        "--data",
        story,
        "--out",
        tmp_path / "run",
    )
    made = cli(*words, "--length", 16, "--preset", "w8aspike", "--batch-size", 2)
    assert made.code == 0, made.err
    assert "1/2: convert" in made.err
    assert "calibrated on  2 windows of" in made.out and "measured on    6 others of" in made.out
    assert "--length must be from 2 to 32" in cli(*words[:-1], tmp_path / "more", "--length", 64).message()


def test_networks_that_do_not_fit(cli, story, tmp_path):
    from transformers import LlamaConfig, LlamaModel

    def refused(folder):
        return cli(
            f"convert transformers:{folder} --weights pretrained --calibrate {story} --out {tmp_path / 'run'}"
        ).message()

    wrong = llama(tmp_path / "wrong", words=tokenizer(size=50))
    assert refused(wrong) == (
        f"transformers:{wrong}: its tokenizer has 50 tokens, and the network knows 32. "
        "Put the tokenizer that the network was trained with into the folder."
    )
    headless = tmp_path / "headless"
    LlamaModel(LlamaConfig(vocab_size=32, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
               ).save_pretrained(headless)  # fmt: skip
    tokenizer().save_pretrained(headless)
    assert "LlamaModel has no language head, and nothing can be scored." in refused(headless)
    bare = llama(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    assert "the folder holds no network that can be loaded" in refused(bare)


def test_an_image_network_takes_no_length(cli, tmp_path):
    found = cli(
        "convert bundled:cifar10-vit --calibrate bundled:cifar10-calibration --length 8 --out "
        f"{tmp_path / 'r'}"
    )
    assert found.message() == "bundled:cifar10-vit reads no text, and --length is for text. Leave it out."
