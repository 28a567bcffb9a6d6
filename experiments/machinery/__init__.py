"""The machinery of the papers' experiments: what a file in ``experiments/`` declares, how it is run and judged.

    declarations  the records that an experiment is made of: ``PaperExperiment``, ``Scale``, ``Search``, ``Claim``
    claims        shapes that several experiments' claims share: comparisons of arms, changes between conditions
    measures      numbers of one run: final accuracy, spread, trips to a target, accuracy at equal trips
    results       the runs of an experiment, by condition, arm and seed
    verdicts      whether results support claims: differences paired by seed, with confidence intervals
    search        the equal search for settings of every arm
    report        the measured table, the paper's numbers and the verdicts, as text
    running       runs an experiment from ``run.py``'s flags to its report
    discovery     the list of experiments

``from experiments.machinery import ...`` has everything that an experiment's file needs.
"""

from experiments.machinery.claims import change, compare, loses_less
from experiments.machinery.declarations import (
    Claim,
    Context,
    LogUniform,
    PaperExperiment,
    Published,
    Scale,
    Search,
    server_rates,
)
from experiments.machinery.measures import (
    Measure,
    accuracy_at,
    final,
    final_accuracy,
    logarithmic_spread,
    spread,
    steps_to,
    time_to,
    trips_to,
)
from experiments.machinery.results import Runs, paired
from jafl.config.arms import Override

__all__ = [
    "Claim",
    "Context",
    "LogUniform",
    "Measure",
    "PaperExperiment",
    "Published",
    "Override",
    "Runs",
    "Scale",
    "Search",
    "accuracy_at",
    "change",
    "compare",
    "final",
    "final_accuracy",
    "logarithmic_spread",
    "paired",
    "loses_less",
    "server_rates",
    "spread",
    "steps_to",
    "time_to",
    "trips_to",
]
