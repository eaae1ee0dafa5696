"""The search on analytic objectives with a known optimum, and on real processes that are killed."""

from __future__ import annotations

import dataclasses
import math
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing, contextmanager

import pytest
from optuna.trial import TrialState

from onespike import scale_search
from onespike.errors import LoadError, UsageError
from onespike.runtime.progress import reporting
from onespike.runtime.validated import checksum
from onespike.scale_search import LOWEST, Measurement, grid, search


def parabola(scale, hopeless=None):
    """Best at λ = 0.3; energy falls as λ grows."""
    return Measurement(-((math.log(scale) - math.log(0.3)) ** 2), 0.05 / scale)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize(("sampler", "trials"), [("gp", 12), ("tpe", 25), ("grid", 20)])
def test_finds_a_known_optimum(sampler, trials, maximize):
    def objective(scale, hopeless):
        return Measurement(parabola(scale).value * (1 if maximize else -1))

    result = search(objective, trials=trials, sampler=sampler, maximize=maximize, fixed=(1.0, LOWEST))
    assert abs(math.log(result.best.scale / 0.3)) < 0.25
    assert len(result.trials) == trials and result.trials[0].scale == 1.0
    assert all(LOWEST <= t.scale <= 1 for t in result.trials)


@pytest.mark.parametrize("sampler", ["gp", "tpe", "grid"])
def test_values_that_are_all_alike_do_not_stall_it(sampler):
    """A broken detector has AP 0 at every λ; a sampler that asks for one λ again is replaced."""
    result = search(lambda s, h: Measurement(0.0), trials=14, sampler=sampler)
    assert len({trial.scale for trial in result.trials}) >= 13


def test_the_budget_is_kept_and_the_best_within_it_is_found():
    best = search(parabola, trials=20, budget=0.1).best
    assert best.energy <= 0.1  # λ ≥ 0.5, and 0.5 is the best of those
    assert best.scale == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_hopeless_trials_are_given_up(sampler):
    measured = []

    def objective(scale, hopeless):
        for step in (1, 2, 3, 4):
            measured.append(scale)
            if step < 4 and hopeless(step, parabola(scale).value):
                return dataclasses.replace(parabola(scale), finished=False)
        return parabola(scale)

    result = search(objective, trials=25, sampler=sampler)
    given_up = [t for t in result.trials if t.value is None]
    assert given_up
    assert len(measured) < 4 * 25
    assert result.best.value is not None
    # the sampler learns from them: it does not ask for the same λ again and again
    assert len({round(t.scale, 3) for t in given_up}) > len(given_up) / 2


def test_a_trial_within_the_budget_is_never_given_up():
    def objective(scale, hopeless):
        assert not any(hopeless(step, parabola(scale).value) for step in (1, 2, 3))
        return parabola(scale)

    assert search(objective, trials=12, sampler="tpe", budget=0.06).best.energy <= 0.06


@pytest.mark.parametrize(("given", "message"), [
    (dict(trials=0), r"^trials must be at least 1, not 0\. The paper uses 50\.$"),
    (dict(sampler="gb"), r"^unknown sampler 'gb'\. Did you mean 'gp'\? Known: gp, grid, tpe\.$"),
    (dict(storage="nonsense://x"), r"^search: the storage nonsense:… cannot be used \(.*\)\. Give an optuna URL such as "),
    (dict(budget=0.01, trials=5), r"^search: no λ stays within the budget 0\.01; the least is 0\.050 of all MACs at λ = 1\. "),
    (dict(resume=True, fresh=True), r"Give one of them\.$"),
    (dict(objective=lambda s, h: Measurement(math.nan)), r"^search: the metric is not a number at λ = 1\. Check the data"),
])  # fmt: skip
def test_bad_input(given, message):
    with pytest.raises(UsageError, match=message):
        search(**{"objective": parabola, **given})


@pytest.mark.parametrize("interrupted", [2, 4])
def test_resume_continues_and_repeats_nothing(url, interrupted):
    """Also where a fixed value was interrupted, the second: it is tried again."""
    measured, reported, several = [], [], {"trials": 6, "fixed": (1.0, 0.25), "storage": url}

    def objective(scale, hopeless):
        measured.append(scale)
        if len(measured) == interrupted:
            raise KeyboardInterrupt
        return parabola(scale)

    with pytest.raises(KeyboardInterrupt):
        search(objective, **several)
    done = measured[: interrupted - 1]
    message = r"has trials already\. Continue it with resume=True, or start over with fresh=True\.$"
    with pytest.raises(UsageError, match=message):
        search(objective, **several)
    with reporting(lambda title, total: iter, reported.append):
        result = search(objective, **several, resume=True)
    assert [t.scale for t in result.trials[: len(done)]] == done and len(result.trials) == 6
    assert {t.scale for t in result.trials} >= {1.0, 0.25} and not set(measured[interrupted:]) & set(done)
    assert [words.split(":")[0] for words in reported] == [f"trial {n}/6" for n in range(interrupted, 7)]


def test_a_fresh_search_forgets_and_starts_over(url):
    for name in ("a", "b"):
        search(parabola, trials=3, storage=url, name=name, identity="1")
    with pytest.raises(UsageError, match=r"'a' is of other inputs\. Give the same ones again, or start over"):
        search(parabola, trials=2, storage=url, name="a", identity="2", resume=True)
    result = search(parabola, trials=2, storage=url, name="a", identity="2", fresh=True)
    assert len(result.trials) == 2
    other = search(parabola, trials=3, storage=url, name="b", identity="1", resume=True)
    assert len(other.trials) == 3  # other studies in the file stay
    assert len(search(parabola, trials=2, storage=url, name="new", fresh=True).trials) == 2

    def meanwhile(scale, hopeless):
        with pytest.raises(UsageError, match=r"^search: a process is measuring the study 'a', "):
            search(parabola, trials=1, storage=url, name="a", fresh=True)
        return parabola(scale)

    again = search(meanwhile, trials=3, storage=url, name="a", identity="2", resume=True)
    assert len(again.trials) == 3


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE trial_values SET value = value + 1 WHERE trial_id = 2",
        "UPDATE trial_params SET param_value = 0.5 WHERE trial_id = 2",
        "UPDATE trial_user_attributes SET value_json = '0.1' WHERE trial_id = 2 AND key = 'energy'",
        "DELETE FROM trial_user_attributes WHERE trial_id = 2 AND key = 'sha256'",
    ],
)
def test_a_number_that_changed_in_the_storage_is_refused(url, change):
    search(parabola, trials=3, sampler="grid", storage=url)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        assert connection.execute(change).rowcount == 1
    with pytest.raises(LoadError, match=r"trial 1 of the study is damaged .* Start over with fresh=True"):
        search(parabola, trials=3, sampler="grid", storage=url, resume=True)


@contextmanager
def opened(url):
    """The study in a storage, and the storage."""
    import optuna

    storage = optuna.storages.RDBStorage(url)
    yield optuna.load_study(study_name="scale", storage=storage), storage
    storage.remove_session()
    storage.engine.dispose()


def left_running(url, beaten):
    """A study whose process died while λ = 1 was running: after its last beat, or before it had left any trace."""
    search(parabola, trials=1, fixed=(0.5,), storage=url)
    with opened(url) as (running, storage):
        running.enqueue_trial({"scale": 1.0})
        trial = running.ask()
        if beaten:
            trial.suggest_float("scale", LOWEST, 1.0, log=True)
            storage.record_heartbeat(trial._trial_id)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")
        database.commit()


@pytest.mark.parametrize("beaten", [True, False])
def test_a_dead_trial_is_measured_again_whatever_process_has_its_id(url, monkeypatch, beaten):
    monkeypatch.setattr(scale_search, "GRACE", 1)
    left_running(url, beaten)
    result = search(parabola, trials=3, fixed=(1.0, 0.25), storage=url, resume=True)
    assert sorted(t.scale for t in result.trials) == [0.25, 0.5, 1.0]


WORKER = """
import math, sys, time
from onespike import scale_search
from onespike.scale_search import Measurement, search

scale_search.BEAT, scale_search.GRACE = 1, 3

def objective(scale, hopeless):
    with open(sys.argv[2], "a") as log:
        log.write(f"start {scale!r}\\n")
    time.sleep(0.05)
    with open(sys.argv[2], "a") as log:
        log.write(f"end {scale!r}\\n")
    return Measurement(-((math.log(scale) - math.log(0.3)) ** 2))

search(objective, trials=int(sys.argv[3]), fixed=(1.0, 0.25), storage=sys.argv[1], resume=True, sampler=sys.argv[4])
"""


def worker(tmp_path, url, log, trials, sampler="tpe"):
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    return subprocess.Popen([sys.executable, str(script), url, str(log), str(trials), sampler])


def finished(url):
    with opened(url) as (shared, _):
        return [trial.params["scale"] for trial in shared.trials if trial.state.name == "COMPLETE"]


def check_shared(url, processes, trials, log):
    for process in processes:
        assert process.wait(timeout=900) == 0
    done = finished(url)
    assert trials <= len(done) < trials + len(processes)  # the last trial of each may end together
    assert len(set(done)) >= trials - len(processes)  # two may begin with the same fixed value
    started = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("start")]
    assert len(started) == len(done)  # nothing was lost


def test_a_real_kill_loses_no_finished_trial(tmp_path, url):
    log = tmp_path / "log"
    process = worker(tmp_path, url, log, 12, "grid")
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and (not log.exists() or log.read_text().count("end") < 4):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(url)
    assert len(before) >= 3
    assert worker(tmp_path, url, log, 12, "grid").wait(timeout=900) == 0
    after = finished(url)
    assert after[: len(before)] == before
    assert sorted(after, reverse=True) == grid(12)  # the one that was being measured, too
    starts = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("start")]
    assert all(starts.count(repr(scale)) == 1 for scale in before)


def test_processes_that_share_a_study_draw_different_numbers(url, monkeypatch):
    seeds, made = [], scale_search.sampler_of
    monkeypatch.setattr(scale_search, "sampler_of", lambda name, seed: seeds.append(seed) or made(name, seed))

    def interleaved(scale, hopeless):
        if scale == 1.0:
            with opened(url) as (shared, _):
                shared.tell(shared.ask(), state=TrialState.FAIL)
        return parabola(scale, hopeless)

    search(interleaved, trials=3, fixed=(1.0,), storage=url, sampler="tpe")
    assert seeds == [1, 2]  # that of the second trial of its own is its number


def test_a_trial_that_another_process_has_told_counts_once(url):
    def told(scale, hopeless):
        if scale == 0.5:
            with opened(url) as (shared, _):
                number = next(t.number for t in shared.trials if t.state.name == "RUNNING")
                other = {"finished": True, "energy": None, "sha256": checksum((0.5, 1.0, True, None))}
                for name, fact in other.items():
                    shared._storage.set_trial_user_attr(shared.trials[number]._trial_id, name, fact)
                shared.tell(number, 1.0)
        return parabola(scale, hopeless)

    result = search(told, trials=3, fixed=(1.0, 0.5), storage=url)
    assert [t.scale for t in result.trials].count(0.5) == 1
    assert len(result.trials) == 3


def test_two_processes_share_one_study(tmp_path, url):
    log = tmp_path / "log"
    check_shared(url, [worker(tmp_path, url, log, 14) for _ in range(2)], 14, log)
