"""Networks that read text on the command line: convert, evaluate, generate, search, doctor, report, compare."""

from __future__ import annotations

import importlib
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from language_folders import bert, llama, text

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return text(tmp_path_factory.mktemp("text") / "other.txt", 1, 95)


def test_convert_with_passes_and_evaluate(cli, llama_folder, story, other, tmp_path):
    words = f"convert transformers:{llama_folder} --weights pretrained --calibrate {story} --length 16 --batch-size 4"
    words += f" --passes nearest,layout,center,allocate --energy binary --out {tmp_path / 'run'}"
    made = cli(words).good()
    assert "calibrated on  8 windows of" in made.out and "windows of 16 tokens" in made.out
    assert "sites          22 of 23 spike; analog: none; 8-bit integers: lm_head:linear0_input" in made.out
    file = tmp_path / "result.json"
    done = cli(f"evaluate {tmp_path / 'run'} --data {other} --batch-size 2 --json {file}").good()
    record = json.loads(file.read_text())
    assert (record["task"], record["windows"], record["tokens"]) == ("language", 6, 96)
    assert 0 < record["kl"] < 1 and record["snn"]["perplexity"] > 1
    assert 0.05 < record["head_share"] < 0.2
    assert "perplexity per token" in done.out and "energy per token: original" in done.out
    assert "6 windows of 16 tokens; per token as GPTQ counts, per word as lm-eval does" in done.out


def test_search_doctor_report_and_compare(cli, text_run, story, other, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    search = f"search {run} --data {other} --sampler grid --trials"
    assert "best λ" in cli(f"{search} 3 --batch-size 3").good().out
    assert "perplexity per token" in cli(f"{search} 2 --objective perplexity").good().out
    done = cli(f"doctor {run} --data {other} --images 4 --batch-size 2").good()
    assert "perplexity per token: original" in done.out
    cli(f"report {run} --data {other} --batch-size 3").good()
    page = (run / "report" / "report.html").read_text()
    assert "next tokens are the same; furthest apart after token" in page
    cli(f"report {text_run} {run} --data {other} --out {tmp_path / 'compared'}").good()
    assert "SNN perplexity" in (tmp_path / "compared" / "compare.md").read_text()
    copy = shutil.copy(story, tmp_path / "renamed.txt")  # known by its contents
    done = cli(f"evaluate {text_run} --data {copy} --limit 3 --batch-size 2 --compare").good()
    assert "note: 3 of these windows were used for calibration, first renamed.txt[0:16]" in done.out
    assert " w8a8\n" in done.out


def test_generate(cli, text_run, tmp_path):
    file, prompt = tmp_path / "written.json", "once upon the time"
    done = cli("generate", text_run, prompt, "--length", 5, "--original", "--json", file).good()
    assert done.out.startswith(f"{prompt} ") and f"original: {prompt}" in done.out
    assert done.err.endswith(f"next: onespike serve {text_run}\n")
    record = json.loads(file.read_text())
    assert record["prefill"]["tokens"] == 5 and record["decode"]["tokens"] <= 4  # <s> and four words
    assert 0 < record["decode"]["energy_pj"] < record["decode"]["original_pj"]
    streamed = cli("generate", text_run, prompt, "--length", 5, "--stream")
    assert streamed.out.splitlines()[0] == record["texts"][0] and "\033" not in streamed.err
    cli(f"generate {text_run} 'the cat' '{prompt}' --length 3 --cache static --json {file}").good()
    record = json.loads(file.read_text())
    assert record["prefill"]["tokens"] == 8  # padding is none of them
    assert record["texts"][0].startswith("the cat") and record["texts"][1].startswith("once upon")


CATS = """task: cats
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc}]
"""


def test_questions_of_the_harness(cli, text_run, tmp_path, monkeypatch):
    pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
    rows = [{"q": "the cat sat on the", "choices": ["mat", "ball"], "gold": i % 2} for i in range(6)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "cats.yaml").write_text(CATS.replace("FOLDER", str(tmp_path)))
    file, words = tmp_path / "result.json", f"evaluate {text_run} --tasks"
    done = cli(f"{words} cats --data {tmp_path} --json {file}").good()
    (row,) = json.loads(file.read_text())["tasks"]
    assert (row["task"], row["metric"], row["ann"], row["questions"]) == ("cats", "acc", 0.5, 6)
    assert row["error"] is not None and "cats  acc" in done.out
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    few = partial(manager, include_path=str(tmp_path), include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **_: few())  # not thousands
    assert "has no task 'dogs'" in cli(f"{words} dogs").message()
    assert "Give one of them" in cli(f"{words} cats --data a").message()


def test_an_encoder_embeds(cli, tmp_path):
    pairs, file, run = tmp_path / "pairs.tsv", tmp_path / "result.json", tmp_path / "run"
    pairs.write_text(
        "the cat sat\tthe cat ran\t0.8\nred ball\tblue ball on the mat\t0.6\n"
        "once upon the time\tthere was a dog\t0.1\na b c\td e\t0.3\n"
    )
    words = f"convert transformers:{bert(tmp_path / 'net')} --weights pretrained --calibrate {pairs}"
    cli(f"{words} --passes nearest,allocate --out {run}").good()
    done = cli(f"evaluate {run} --data {pairs} --batch-size 3 --json {file}").good()
    record = json.loads(file.read_text())
    assert (record["task"], record["texts"], record["pairs"]) == ("embedding", 8, 4)
    assert 0.7 < record["cosine"] <= 1 and record["ann"]["spearman"] is not None
    assert "cosine with the original" in done.out


def test_run_takes_windows_of_another_length(cli, llama_folder, story, tmp_path):
    words = f"run transformers:{llama_folder} --weights pretrained --data {story} --length 16 --batch-size 2"
    made = cli(f"{words} --preset w8aspike --out {tmp_path / 'run'}").good()
    assert "1/2: convert" in made.err
    assert "calibrated on  2 windows of" in made.out and "measured on    6 others of" in made.out


def test_networks_in_blocks_give_the_same_run_and_figures(cli, tmp_path):
    """A network that is never whole in memory."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    network, story = llama(tmp_path / "llama", num_hidden_layers=3), text(tmp_path / "story.txt", 0, 95)
    words = f"convert transformers:{network} --weights pretrained --preset sformer --calibrate {story} --length 16"
    cli(f"{words} --batch-size 2 --out {tmp_path / 'one'}").good()
    made = cli(f"{words} --batch-size 2 --device-map blocks:1MB --out {tmp_path / 'two'}").good()
    assert "blocks         weights 69.02 KB in 5 parts" in made.out
    one, two = ((tmp_path / name / "thresholds.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    records = []
    for more in ("", "--device-map blocks"):
        file = tmp_path / "result.json"
        done = cli(f"evaluate {tmp_path / 'two'} --data {story} --batch-size 2 --json {file} {more}").good()
        assert ("blocks         weights" in done.out) == bool(more)
        records.append(json.loads(file.read_text()))
        for name in ("made", "seconds", "dead_share"):
            del records[-1][name]
    assert records[0] == records[1] and records[0]["windows"] == 6
    small = cli(f"{words} --device-map blocks:10KB --out {tmp_path / 'run'}").message()
    assert small.startswith("blocks: 20.93 KB for the largest block") and not (tmp_path / "run").exists()
