"""Every column of the ledger against the unit-weight reference: the same operation on the spikes, all weights 1."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_ledger_again import READ, raw
from torch import Tensor, nn

from contract.conversion_contract import run
from contract.networks import converted, counted, mlp, rows, sequences, transformer
from onespike import Ledger, Recipe, metered
from onespike.energy.ledger import SiteCount
from onespike.errors import UsageError
from onespike.sites import Places


def by_site(ledger: Ledger) -> dict[str, SiteCount]:
    return {str(site): row for site, row in ledger.sites.items()}


@pytest.fixture(scope="module")
def attention() -> tuple[nn.Module, Tensor, dict[str, Tensor], Ledger]:
    x = sequences()
    snn = converted(transformer(), x)
    return snn, x, raw(snn, x)[0], counted(snn, x)


def test_the_second_operand_drives_where_the_first_is_analog(attention):
    ledger = counted(converted(transformer(), sequences(), Recipe(exclude=(":matmul0_lhs",))), sequences())
    assert str(ledger.products()[":matmul0"].site) == ":matmul0_rhs"
    assert ledger.macs == attention[-1].macs


@pytest.mark.parametrize("column", READ)
def test_the_double_count_is_all_pairs(attention, column):
    """Of spikes, of neurons that spike, or of digits: Σ NAF(a)·NAF(b)."""
    _, _, y, ledger = attention
    sites, read = by_site(ledger), READ[column]
    expected = sum(sites[site].additions[column] for site in y if "matmul" not in site)
    for product in (":matmul0", ":matmul1"):
        expected += float((read(y[f"{product}_lhs"]) @ read(y[f"{product}_rhs"])).sum())
    assert ledger.accumulates(column, double=True) == expected != ledger.accumulates(column)
    assert ledger.ratio(column, double=True) == pytest.approx(expected * 0.9 / (ledger.macs * 4.6))


def test_the_meter_changes_no_output_and_leaves(attention):
    snn, x, *_ = attention
    expected = run(snn, x)
    with metered(snn) as ledger:
        assert torch.equal(run(snn, x), expected)
    macs = ledger.macs
    assert torch.equal(run(snn, x), expected)
    assert ledger.macs == macs > 0
    with pytest.raises(RuntimeError), metered(snn, ledger):
        snn(torch.zeros(1, 2))
    assert torch.equal(run(snn, x), expected)
    assert all(place.visitor is None for place in snn.modules() if isinstance(place, Places))


def test_batches_add_up():
    x = sequences().double()
    snn = converted(transformer().double(), x)
    whole, split = counted(snn, x), counted(snn, x[:5], x[5:])
    for column in READ:
        assert split.accumulates(column) == whole.accumulates(column)
        doubled = whole.accumulates(column, double=True)
        assert split.accumulates(column, double=True) == pytest.approx(doubled)
    assert (split.macs, split.functions) == (whole.macs, whole.functions)


def test_each_thread_has_a_network_and_a_ledger_of_its_own():
    """A shared one would mix up both operands of a product: it is refused, and the copies add up."""
    snn, batches = converted(transformer(), sequences(8)), sequences(8).split(1)
    with metered(snn) as whole:
        for batch in batches:
            snn(batch)
        copies = [copy.deepcopy(snn) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(lambda number: counted(copies[number], *batches[number::3]), range(3))
        for other in others:
            first.merge(other)
        assert first.inputs == whole.inputs == 8
        for double in (False, True):
            assert first.ratio("counts", double) == pytest.approx(whole.ratio("counts", double))
        with metered(snn) as ledger:
            for attempt in (lambda: snn(batches[0]), lambda: metered(snn).__enter__()):
                with pytest.raises(UsageError, match=r"in another thread.*copy\.deepcopy.*Ledger\.merge"):
                    pool.submit(attempt).result()
            snn(batches[0])
    assert ledger.inputs == 1 and ledger.sites
    assert all(place.visitor is None for place in snn.modules() if isinstance(place, Places))


def test_saturation_and_activity_are_counted():
    x = rows()
    snn = converted(mlp(), x, Recipe(levels="linear:1", scale=0.1))
    y = raw(snn, x)[0]["2:linear0_input"]
    row = by_site(counted(snn, x))["2:linear0_input"]
    assert row.saturated == int((y == 2).sum()) > 0
    assert row.active == int((y > 0).sum()) < row.elements


def test_an_empty_ledger_has_no_ratio():
    with pytest.raises(UsageError, match=r"^this ledger has counted nothing\. Run the network within"):
        Ledger().ratio("counts")


def test_the_table_of_sites_adds_up_to_the_totals(attention):
    ledger = attention[-1]
    rows = ledger.table()
    assert sum(row["ratio"] for row in rows) == pytest.approx(ledger.ratio("counts"))
    for column in ("counts", "nonzero", "binary"):
        driven = sum(row[column] for row in rows if row["drives"])
        assert driven == ledger.accumulates(column) > 0
    # of the two spiking operands of a product, one drives
    products = [row for row in rows if "matmul0" in row["site"] and row["spiking"]]
    assert [row["drives"] for row in products[:2]] == [True, False]
    assert all(0 <= row["active share"] <= 1 for row in rows)


def test_a_sample_estimates_the_whole():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(2),
        nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4),
    )  # fmt: skip
    x = torch.randn(32, 3, 8, 8)
    for recipe in (Recipe(), Recipe(granularity="channel")):  # one threshold, and one for each channel
        snn = converted(model, x, recipe)
        exact, estimate = Ledger(), Ledger(every=4)
        outputs = []
        for ledger in (exact, estimate):
            with metered(snn, ledger), torch.inference_mode():
                outputs.append(snn(x))
        assert torch.equal(*outputs)
        assert estimate.macs == exact.macs
        for column in ("counts", "nonzero", "binary"):
            assert estimate.ratio(column) == pytest.approx(exact.ratio(column), rel=0.05)
            assert estimate.ratio(column) != exact.ratio(column)
            with pytest.raises(UsageError, match=r"^pairs of spikes are not sampled\. Count with every=1\."):
                estimate.ratio(column, double=True)
        with pytest.raises(UsageError, match=r"Count with every=1 for 'strict'\."):
            estimate.ratio("strict")
