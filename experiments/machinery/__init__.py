"""The machinery of the papers' experiments: what a file in ``experiments/`` declares, how it is run and judged.

    declarations  the records that an experiment is made of: ``PaperExperiment``, ``Scale``, ``Analysis``, ``Claim``
    protocol      what docs/protocol.md demands of them, and whether results keep to it
    statistics    corrected intervals, equivalence tests, restricted means, Holm, power, performance profiles
    contrasts     differences of trips to a target that join arms and conditions, where runs may never arrive
    claims        shapes that several experiments' claims share: comparisons of arms, changes between conditions
    measures      numbers of one run: final accuracy, spread, trips to a target, accuracy at equal trips
    results       the runs of an experiment, by condition, arm and seed
    verdicts      what results say of claims: better, worse, equivalent or undecided
    profiles      what each arm needs in each world of a paper
    search        the equal search for settings of every arm
    report        the measured table, the paper's numbers and the verdicts, as text
    families      what all experiments of one paper say: primary claims after Holm's correction, counts
    overview      the tables of experiments/README.md
    pages         docs/results: the summary of all papers and a page for each experiment, made from verdicts.json
    control       how often a world in which nothing can be learnt gives a verdict
    dry_runs      what an experiment would run: arms, settings, seeds, trips, memory, multiply-adds (--dry_run)
    assumptions   stand-ins to plan with, for data sets and models that are not here
    running       runs an experiment from ``run.py``'s flags to its report
    discovery     the list of experiments

``from experiments.machinery import ...`` has everything that an experiment's file needs.
"""

from experiments.machinery.claims import change, compare, loses_less
from experiments.machinery.contrasts import LOG_TRIPS_MARGIN, log_contrast
from experiments.machinery.declarations import (
    ACCURACY_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    Context,
    Differences,
    LogUniform,
    Margin,
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
    "ACCURACY_MARGIN",
    "LOG_TRIPS_MARGIN",
    "TRIPS_MARGIN",
    "Analysis",
    "Claim",
    "Context",
    "Differences",
    "LogUniform",
    "Margin",
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
    "log_contrast",
    "logarithmic_spread",
    "paired",
    "loses_less",
    "server_rates",
    "spread",
    "steps_to",
    "time_to",
    "trips_to",
]
