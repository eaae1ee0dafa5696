"""The paper's theorems, each as a function that returns both sides."""

from onespike.studies.theory.check import Row as Row
from onespike.studies.theory.check import check_all as check_all
from onespike.studies.theory.check import check_claim as check_claim
from onespike.studies.theory.check import check_fire as check_fire
from onespike.studies.theory.claims import Claim as Claim
from onespike.studies.theory.claims import equation_5 as equation_5
from onespike.studies.theory.claims import theorem_1 as theorem_1
from onespike.studies.theory.claims import theorem_2 as theorem_2
from onespike.studies.theory.claims import theorem_3 as theorem_3
