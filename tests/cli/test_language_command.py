"""Networks that read text on the command line: convert, evaluate, generate, search, doctor, report, compare."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from language_folders import bert, text

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return text(tmp_path_factory.mktemp("text") / "other.txt", 1, 95)


def test_convert_with_passes_and_evaluate(cli, figures, llama_folder, story, other, tmp_path):
    words = f"convert transformers:{llama_folder} --weights pretrained --calibrate {story} --length 16 --batch-size 4"
    words += f" --passes nearest,layout,center,allocate --energy binary --out {tmp_path / 'run'}"
    made = cli(words).good()
    assert "calibrated on  8 windows of" in made.out and "windows of 16 tokens" in made.out
    assert "sites          22 of 23 spike; analog: none; 8-bit integers: lm_head:linear0_input" in made.out
    done, record = figures(f"evaluate {tmp_path / 'run'} --data {other} --batch-size 2")
    assert (record["task"], record["windows"], record["tokens"]) == ("language", 6, 96)
    assert 0 < record["kl"] < 1 and record["snn"]["perplexity"] > 1
    assert 0.05 < record["head_share"] < 0.2
    assert "perplexity per token" in done.out and "energy per token: original" in done.out
    assert "6 windows of 16 tokens" in done.out


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


def test_generate(cli, figures, text_run):
    prompt = "once upon the time"
    done, record = figures("generate", text_run, prompt, "--length", 5)
    assert done.out.startswith(f"{prompt} ")
    assert done.err.endswith(f"next: onespike serve {text_run}\n")
    assert record["prefill"]["tokens"] == 5 and record["decode"]["tokens"] <= 4  # <s> and four words
    assert 0 < record["decode"]["energy_pj"] < record["decode"]["original_pj"]
    streamed = cli("generate", text_run, prompt, "--length", 5, "--stream")
    assert streamed.out.splitlines()[0] == record["texts"][0] and "\033" not in streamed.err
    _, record = figures(f"generate {text_run} 'the cat' '{prompt}' --length 3 --cache static")
    assert record["prefill"]["tokens"] == 8  # padding is none of them
    assert record["texts"][0].startswith("the cat") and record["texts"][1].startswith("once upon")


def test_an_encoder_embeds(cli, figures, tmp_path):
    pairs, run = tmp_path / "pairs.tsv", tmp_path / "run"
    pairs.write_text(
        "the cat sat\tthe cat ran\t0.8\nred ball\tblue ball on the mat\t0.6\n"
        "once upon the time\tthere was a dog\t0.1\na b c\td e\t0.3\n"
    )
    words = f"convert transformers:{bert(tmp_path / 'net')} --weights pretrained --calibrate {pairs}"
    cli(f"{words} --passes nearest,allocate --out {run}").good()
    done, record = figures(f"evaluate {run} --data {pairs} --batch-size 3")
    assert (record["task"], record["texts"], record["pairs"]) == ("embedding", 8, 4)
    assert 0.7 < record["cosine"] <= 1 and record["ann"]["spearman"] is not None
    assert "cosine with the original" in done.out


def test_run_takes_windows_of_another_length(cli, llama_folder, story, tmp_path):
    words = f"run transformers:{llama_folder} --weights pretrained --data {story} --length 16 --batch-size 2"
    made = cli(f"{words} --preset w8aspike --out {tmp_path / 'run'}").good()
    assert "1/2: convert" in made.err
    assert "calibrated on  2 windows of" in made.out and "measured on    6 others of" in made.out


def test_networks_in_blocks_give_the_same_run_and_figures(
    cli, figures, llama_folder, story, text_run, tmp_path
):
    """A network that is never whole in memory."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    words = f"convert transformers:{llama_folder} --weights pretrained --preset sformer --calibrate {story}"
    words += f" --length 16 --batch-size 4 --out {tmp_path / 'run'} --device-map"
    assert cli(f"{words} blocks:1KB").message().startswith("blocks: ")
    assert "blocks         weights" in cli(f"{words} blocks:1MB").good().err
    one, two = ((run / "thresholds.safetensors").read_bytes() for run in (text_run, tmp_path / "run"))
    assert one == two
    records = [
        figures(f"evaluate {run} --data {story} --limit 4 --batch-size 2 {more}")[1]
        for run, more in ((text_run, ""), (tmp_path / "run", "--device-map blocks"))
    ]
    assert records[0]["kl"] == records[1]["kl"] and records[0]["energy"] == records[1]["energy"]
