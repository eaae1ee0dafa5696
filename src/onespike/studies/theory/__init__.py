"""The paper's theorems, each as a function that returns both sides, and their table over random cases."""

from onespike.studies.theory.check import Row as Row
from onespike.studies.theory.check import check_all as check_all
