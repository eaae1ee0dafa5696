"""λ by Bayesian optimization: ask a sampler, measure, tell. It knows numbers, not networks."""

from onespike.scale_search.study import LOWEST, Hopeless, Measurement, Search, Trial, front, grid, search

__all__ = ["LOWEST", "Hopeless", "Measurement", "Search", "Trial", "front", "grid", "search"]
