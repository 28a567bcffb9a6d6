"""The harness of the papers' experiments: what a file in ``experiments/papers`` declares, how it is run and judged.

``declare/``, what an experiment's file says:

    declarations  the records that an experiment is made of: ``PaperExperiment``, ``Scale``, ``Analysis``, ``Claim``
    protocol      what docs/protocol.md demands of them, and whether results keep to it
    contrasts     differences of trips to a target that join arms and conditions, where runs may never arrive
    claims        shapes that several experiments' claims share: comparisons of arms, changes between conditions
    search        the equal search for settings of every arm
    search_results  what searches have found, kept for later commands
    checks        whether an experiment's file states what docs/protocol.md demands
    division      how its examples are divided, for the correction of its intervals
    discovery     the list of experiments
    assumptions   stand-ins to plan with, for data sets and models that are not here

``run/``, from ``run.py``'s flags to results:

    running       runs an experiment and reports it
    sweeps        its runs as sweeps, one of its search and one of its results
    multiply_adds counted off the traced gradient and evaluation
    dry_runs      what an experiment would run: arms, settings, seeds, trips, memory, multiply-adds (run.py plan)
    explanations  what would turn a verdict that is not the paper's
    control       how often a rule against itself gives a verdict

``judge/``, what results say of claims:

    verdicts      better, worse, equivalent or undecided
    reasons       what may turn a verdict, of what is judged already
    replication   an experiment once more, with seeds and splits that share nothing
    profiles      what each arm needs in each world of a paper

``report/``:

    report        the measured table, the paper's numbers and the verdicts, as text
    families      what all experiments of one paper say: primary claims after Holm's correction, counts
    curves        what an experiment's picture is drawn from, written with its results
    pictures      the picture that its page begins with
    overview      the tables of experiments/README.md
    what_to_use   ten choices between rules, and what the results say of them
    kept_results  what is kept in docs/results/data
    pages         docs/results: the summary of all papers and a page for each experiment, made from verdicts.json

What all of them share:

    statistics    corrected intervals, equivalence tests, restricted means, Holm, power, performance profiles
    measures      numbers of one run: final accuracy, spread, trips to a target, accuracy at equal trips
    results       the runs of an experiment, by condition, arm and seed
    times         how long experiments took by the clock

``from experiments.harness import ...`` has everything that an experiment's file needs.
"""

from experiments.harness.declare.claims import change, compare, loses_less
from experiments.harness.declare.contrasts import LOG_TRIPS_MARGIN, log_contrast
from experiments.harness.declare.declarations import (
    ACCURACY_MARGIN,
    TRIPS_MARGIN,
    Analysis,
    Claim,
    ClaimElsewhere,
    Context,
    Differences,
    LogUniform,
    Margin,
    PaperExperiment,
    Published,
    Rate,
    Scale,
    Search,
    Space,
    server_rates,
)
from experiments.harness.measures import (
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
from experiments.harness.results import Runs, paired
from jafl.config.grid import Override

__all__ = [
    "ACCURACY_MARGIN",
    "LOG_TRIPS_MARGIN",
    "TRIPS_MARGIN",
    "Analysis",
    "Claim",
    "ClaimElsewhere",
    "Context",
    "Differences",
    "LogUniform",
    "Margin",
    "Measure",
    "PaperExperiment",
    "Published",
    "Override",
    "Rate",
    "Runs",
    "Scale",
    "Search",
    "Space",
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
