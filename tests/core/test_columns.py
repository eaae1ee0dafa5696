"""Energy columns: one entry in the registry, and every part of the project knows a column."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from contract.networks import converted, counted, mlp, rows
from onespike import Ledger, Recipe
from onespike.cli.app import app
from onespike.energy.columns import (
    COLUMNS,
    READINGS,
    Column,
    Item,
    column_of,
    holdable,
    meanings,
    reading_of,
    searchable,
)
from onespike.energy.profiles import DEFAULT, OPERATIONS, names, profile
from onespike.errors import UsageError
from onespike.passes.budget import check_budget


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return counted(converted(mlp(), rows()), rows())


def test_one_entry_is_a_column_everywhere(monkeypatch, ledger):
    halves = Column(
        "halves", "half an addition for each spike",
        lambda ledger, double: [Item("spikes", ledger.accumulates("nonzero") / 2, "float32 add")],
        READINGS["nonzero"],
    )  # fmt: skip
    monkeypatch.setitem(COLUMNS, "halves", halves)
    assert ledger.ratio("halves") == pytest.approx(ledger.ratio("nonzero") / 2)
    assert "halves" in ledger.ratios() and "halves" in searchable() and "halves" in holdable()
    check_budget(0.2, "halves")
    listed = CliRunner().invoke(app, ["list", "columns"])
    assert listed.exit_code == 0 and "half an addition for each spike" in listed.output


def test_comparators_read_no_spikes(ledger):
    assert set(COLUMNS) - set(searchable()) == {"w8a8", "w4a4", "strict-w8a8", "strict-w4a4"}
    assert Recipe().energy in holdable()
    assert list(meanings()) == list(ledger.ratios())


def test_every_operation_of_a_column_can_be_priced(ledger):
    for column in COLUMNS:
        assert {item.operation for item in ledger.items(column)} <= set(OPERATIONS), column
    prices = profile()
    assert prices.name == DEFAULT == names()[0]
    assert (prices.price("float32 add"), prices.price("float32 multiply-add")) == (0.9, 4.6)


@pytest.mark.parametrize("name", names())
def test_every_profile_says_where_it_comes_from_and_prices_integers(name, ledger):
    prices = profile(name)
    assert prices.name == name and len(prices.source) > 60
    ratios = ledger.ratios(prices)
    assert all(ratios[column] > 0 for column in ("counts-int8", "binary-int8", "strict-int8", "w8a8", "w4a4"))


def test_reading_weights_and_sending_spikes_are_paid_for(ledger):
    prices = profile("horowitz-45nm-sram")
    additions, sent = ledger.accumulates("binary"), ledger.events("binary")
    whole = ledger.macs * (4.6 + 10.0)
    assert ledger.ratio("binary", prices=prices) == pytest.approx((additions * 10.9 + sent * 10.0) / whole)
    assert ledger.ratio("binary-int8", prices=prices) == pytest.approx(
        (additions * 2.6 + sent * 10.0) / whole
    )
    assert ledger.ratio("w8a8", prices=prices) == pytest.approx(2.8 / 14.6)


def test_an_operation_that_a_chip_does_not_have_gives_no_ratio(ledger):
    prices = profile("loihi-14nm")
    assert ledger.ratio("counts", prices=prices) != ledger.ratio("counts", prices=prices)  # NaN
    assert ledger.parts("counts", prices) == {}


def test_a_profile_of_ones_own(tmp_path, ledger):
    prices = {"float32 multiply-add": 1, "float32 add": 1}
    (tmp_path / "mine.json").write_text(json.dumps({"name": "mine", "source": "me", "pj": prices}))
    mine = profile(str(tmp_path / "mine.json"))
    assert ledger.ratio("counts", prices=mine) == pytest.approx(ledger.accumulates("counts") / ledger.macs)
    assert ledger.ratio("w8a8", prices=mine) != ledger.ratio("w8a8", prices=mine)  # NaN: it has no such price


BAD = {
    "[]": r"the file is damaged \(input should be .*\)\. Write \{\"name\"",
    "{": r"the file is damaged \(invalid JSON: .*\)\. Write \{\"name\"",
    '{"name": "a", "source": "b", "pj": {"float add": 1}}': "mine.json: .* unknown operation 'float add'",
    '{"name": "a", "source": "b", "pj": {"float32 multiply-add": -1}}': "must be a number of at least 0",
    '{"name": "a", "source": "b", "pj": {"float32 add": 1}}': "relative to 'float32 multiply-add'",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_profile_says_what_is_wrong(tmp_path, text):
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=BAD[text]):
        profile(str(file))


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (profile, "horowitz", r"unknown hardware profile 'horowitz'\. Did you mean 'horowitz-45nm"),
        (profile, "nowhere.json", r"nowhere\.json: no such file\. Write \{"),
        (column_of, "nothing-int8", "unknown energy column 'nothing-int8'"),
        (reading_of, "w8a8", r"^unknown energy column of spikes 'w8a8'\."),
    ],
)  # fmt: skip
def test_what_is_unknown(function, name, message):
    with pytest.raises(UsageError, match=message):
        function(name)
