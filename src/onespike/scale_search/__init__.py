"""λ by Bayesian optimization: ask a sampler, measure, tell. It knows numbers, not networks."""

from onespike.scale_search.pareto import front
from onespike.scale_search.study import Trial
from onespike.scale_search.trials import (
    LOWEST,
    SAMPLERS,
    Hopeless,
    Measurement,
    Objective,
    Report,
    Search,
    grid,
    search,
)

__all__ = [
    "LOWEST",
    "SAMPLERS",
    "Hopeless",
    "Measurement",
    "Objective",
    "Report",
    "Search",
    "Trial",
    "front",
    "grid",
    "search",
]
