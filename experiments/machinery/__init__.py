"""The machinery of the papers' experiments: what a file in ``experiments/`` declares, and what is done with it.

    declared    the records that an experiment is made of: ``PaperExperiment``, ``Scale``, ``Search``, ``Claim``
    measures    numbers of one run: final accuracy, spread, trips to a target, accuracy at equal trips
    found       all runs of an experiment, by condition, arm and seed
    claims      verdicts: differences between arms, paired by seed, with confidence intervals
    search      the equal search for settings of every arm
    outcome     tables and files
    running     from ``run.py``'s flags to all of that
    discovery   which experiments there are

``from experiments.machinery import ...`` has everything that an experiment's file needs.
"""

from experiments.machinery.declared import (
    Claim,
    Context,
    LogUniform,
    PaperExperiment,
    Published,
    Scale,
    Search,
)
from experiments.machinery.found import Runs
from experiments.machinery.measures import (
    accuracy_at,
    final,
    final_accuracy,
    logarithmic_spread,
    spread,
    steps_to,
    time_to,
    trips_to,
)
from jafl.config.arms import Override

__all__ = [
    "Claim",
    "Context",
    "LogUniform",
    "PaperExperiment",
    "Published",
    "Override",
    "Runs",
    "Scale",
    "Search",
    "accuracy_at",
    "final",
    "final_accuracy",
    "logarithmic_spread",
    "spread",
    "steps_to",
    "time_to",
    "trips_to",
]
