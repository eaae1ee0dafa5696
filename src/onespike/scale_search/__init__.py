"""λ by Bayesian optimization: ask a sampler, measure, tell. It knows numbers, not networks."""

from onespike.scale_search.study import LOWEST as LOWEST
from onespike.scale_search.study import Hopeless as Hopeless
from onespike.scale_search.study import Measurement as Measurement
from onespike.scale_search.study import Report as Report
from onespike.scale_search.study import Search as Search
from onespike.scale_search.study import Trial as Trial
from onespike.scale_search.study import front as front
from onespike.scale_search.study import grid as grid
from onespike.scale_search.study import search as search
