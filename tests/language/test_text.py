"""Texts, rows of JSON, tables and datasets become documents and windows; what cannot be read is named."""

from __future__ import annotations

import math
import os
import re
import sys

import pytest
import torch

from language_folders import sentence, tokenizer
from onespike.adapters.transformers import Tokens
from onespike.errors import DataError, LoadError
from onespike.tasks.embedding import texts
from onespike.tasks.text import documents, pack

TOKENS = Tokens(tokenizer())


def test_windows_cover_the_text_once(tmp_path):
    file = tmp_path / "story.txt"
    file.write_text(sentence(0, 100), encoding="utf-8")
    items = pack(str(file), TOKENS, 8)
    ids = TOKENS.encode(file.read_text())
    windows = [item.content for item in items]
    assert torch.cat(windows).tolist() == ids[: 8 * (len(ids) // 8)]
    assert items[0].name == "story.txt[0:8]" and len({item.sha256 for item in items}) == len(items)
    assert items.contents[3] is windows[3]


def test_documents_of_every_kind(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "the cat"}\n\n{"text": "a dog"}\n{"sentence1": "a", "sentence2": "b", "score": 2}\n'
    )
    found = documents(str(rows))
    assert [d.name for d in found] == ["rows.jsonl:1", "rows.jsonl:3", "rows.jsonl:4"]
    assert (found[0].text, found[1].text, found[2].other, found[2].score) == ("the cat", "a dog", "b", 2.0)
    (tmp_path / "pairs.tsv").write_text("the cat\tthe dog\t0.5\nred ball\tblue ball\t0.9\n")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe cat")  # a mark of the byte order is no text
    assert documents(str(tmp_path / "a.txt"))[0].text == "the cat"
    assert [d.name for d in documents(str(tmp_path))] == ["a.txt", "pairs.tsv:1", "pairs.tsv:2", *(
        f"rows.jsonl:{n}" for n in (1, 3, 4)
    )]  # fmt: skip
    pairs = texts(str(tmp_path / "pairs.tsv"))
    assert [item.content.text for item in pairs] == ["the cat", "red ball", "the dog", "blue ball"]


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.txt", b" \n\n", "there is no text in it. Give a file with some."),
        ("a.txt", b"the cat \xff", "byte 8 is not UTF-8. Give a text in UTF-8."),
        ("a.txt", b"the cat", r"3 tokens, fewer than one window of 8. Give a longer text, or a shorter window: length=3."),
        ("a.jsonl", b'{"text": 3}', 'a row holds {"text": …} or {"sentence1": …, "sentence2": …}, and this one does not.'),
        ("a.jsonl", b"{", "a.jsonl:1: this row is not JSON"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "a.jsonl:1: this row is not JSON (maximum recursion"),
        ("a.jsonl", b'{"text": "\\ud800 cat"}', "a.jsonl:1: this row is not JSON ('utf-8' codec can't encode character '\\ud800'"),
        ("a.jsonl", b'{"sentence1": "a", "sentence2": "b", "score": NaN}', "a.jsonl:1: the score nan is not a number."),
        ("a.jsonl", b'{"sentence1": "a", "sentence2": "b", "score": 1' + b"0" * 400 + b"}", "a.jsonl:1: the score 1000"),
        ("a.tsv", b"a", "a.tsv:1: 1 columns. Give two texts and perhaps a score, tabs between."),
        ("a.tsv", b"a\tb\tc", "a.tsv:1: the score 'c' is not a number."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, name, contents, message):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(DataError, match=re.escape(message)):
        pack(str(tmp_path / name), TOKENS, 8)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_sources_that_are_not_there_or_have_no_end(tmp_path):
    for place, message in ((tmp_path / "none.txt", "No such file"), (tmp_path, "no text in it")):
        with pytest.raises(DataError, match=message):
            documents(str(place))
    os.mkfifo(tmp_path / "a.txt")
    for place in (tmp_path / "a.txt", "/dev/zero"):
        with pytest.raises(DataError, match="this is neither a file nor a folder"):
            documents(str(place))


def test_a_dataset_of_the_library(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra `language` is not installed")
    rows = datasets.Dataset.from_dict({"text": ["the cat", "sat on", "the mat ."]})
    rows.save_to_disk(str(tmp_path / "saved"))
    (found,) = documents(f"datasets:{tmp_path / 'saved'}")
    assert found.text == "the cat\n\nsat on\n\nthe mat ."
    with pytest.raises(DataError, match="the dataset cannot be read"):
        documents("datasets:nobody/nothing@test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LoadError, match=r"it needs datasets. Install .* 'onespike\[language\]'"):
        documents("datasets:wikitext")


def test_perplexity_is_transformers_own_loss(tmp_path):
    from language_folders import llama
    from onespike.adapters import load_model

    loaded = load_model(f"transformers:{llama(tmp_path / 'net')}", pretrained=True).with_length(8)
    (tmp_path / "t.txt").write_text(sentence(2, 40))
    items = loaded.task.inputs(str(tmp_path / "t.txt"))
    metric = loaded.task.metric(items)
    with torch.inference_mode():
        for inputs, labels in loaded.batches(items, 2):
            output = loaded.model(**inputs)
            metric.update(output, output, labels)
        ids = torch.stack([item.content for item in items])
        expected = float(loaded.model(input_ids=ids, labels=ids).loss)
    assert metric.compute()["ann"]["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
