"""An optuna study: opened, read and sealed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onespike.errors import LoadError, UsageError


@dataclass(frozen=True)
class Trial:
    """One tried λ; `value` is None if it was given up early."""

    number: int
    scale: float
    value: float | None
    energy: float | None
    seconds: float


def sampler_of(name: str, seed: int) -> Any:
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=6, deterministic_objective=True)
    if name == "tpe":
        return TPESampler(seed=seed, n_startup_trials=6)
    return RandomSampler(seed=seed)


def open_study(
    backend: Any,
    name: str,
    identity: Mapping[str, Any],
    resume: bool,
    maximize: bool,
    fresh: bool = False,
) -> Any:
    import optuna

    if fresh:
        _discard(backend, name)

    try:
        study = optuna.create_study(
            storage=backend,
            study_name=name,
            direction="maximize" if maximize else "minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=resume,
        )
    except optuna.exceptions.DuplicatedStudyError as error:
        raise UsageError(
            f"search: the study {name!r} has trials already. Continue it with --resume, or start over with --fresh."
        ) from error
    text = json.dumps(dict(identity), sort_keys=True)
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", text)
    elif known != text:
        differing = [k for k, v in json.loads(known).items() if identity.get(k) != v]
        raise UsageError(
            f"search: this study belongs to another search (it differs in {', '.join(differing)}). "
            "Give the same run and options again, or start over with --fresh."
        )
    return study


def _discard(backend: Any, name: str) -> None:
    """Delete a study, unless a process measures it right now."""
    import optuna

    try:
        study = optuna.load_study(study_name=name, storage=backend)
    except KeyError:
        return
    optuna.storages.fail_stale_trials(study)
    if study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        raise UsageError(
            f"search: a process is measuring the study {name!r}, or ended seconds ago. Wait half a minute, or take --resume."
        )
    optuna.delete_study(study_name=name, storage=backend)


def plan(study: Any, wanted: Iterable[float]) -> None:
    """Queue the fixed values that are neither measured nor planned; a failed one is tried again."""
    from optuna.trial import TrialState

    alive = (TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE)
    trials = study.get_trials(deepcopy=False, states=alive)
    # a planned trial has not read its λ yet
    planned = {t.params.get("scale", t.system_attrs.get("fixed_params", {}).get("scale")) for t in trials}
    for scale in wanted:
        if scale not in planned:
            study.enqueue_trial({"scale": scale})


def seal(*found: float | None) -> str:
    """Return the SHA-256 of a trial's results: a database checks its structure, not its numbers."""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def read_trial(frozen: Any) -> Trial:
    attributes = frozen.user_attrs
    found = frozen.params["scale"], frozen.value, attributes.get("finished"), attributes.get("energy")
    if attributes.get("sha256") != seal(*found):
        raise LoadError(
            f"search: trial {frozen.number} of the study is damaged (it is not what was stored: its SHA-256 differs). "
            "Start over with --fresh, or name another --storage."
        )
    return Trial(
        frozen.number,
        frozen.params["scale"],
        frozen.value if attributes.get("finished") else None,
        attributes.get("energy"),
        attributes.get("seconds", 0.0),
    )


def finished(study: Any) -> list[Trial]:
    from optuna.trial import TrialState

    return [read_trial(t) for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]
