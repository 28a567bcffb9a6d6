"""What a schedule alone tells about an experiment, before anything is trained; computed with NumPy.

Every function takes an ``EventSchedule``; those about data also take the clients' numbers of examples or of labels,
and those about influence a weight per applied trip: ``History.weights`` after a run, or before it the ``weight``
column of a rule whose weights depend on the schedule alone. Letters in shapes: J applied trips, T server steps, N
clients, B bins, G groups of clients, C classes, D discarded trips, F trips under way at the end. ``jafl.plots`` draws
the results.
"""

from jafl.diagnostics.checks import Groups
from jafl.diagnostics.costs import Costs, costs
from jafl.diagnostics.examples import ParticipatingExamples, Wasted, participating_examples, wasted
from jafl.diagnostics.labels import LabelsSeen, label_distance, label_shares, labels_seen
from jafl.diagnostics.over_time import (
    InFlight,
    StalenessOverTime,
    in_flight,
    mean_in_flight,
    staleness_over_time,
    step_bins,
)
from jafl.diagnostics.shares import (
    client_staleness,
    equation_8_weights,
    fairness_loss,
    gini,
    groups_by_speed,
    influence,
    jain,
    normalized_within_steps,
    of_fair_share,
    participation,
)
from jafl.diagnostics.summary import summary

__all__ = [
    "Costs",
    "Groups",
    "InFlight",
    "LabelsSeen",
    "ParticipatingExamples",
    "StalenessOverTime",
    "Wasted",
    "client_staleness",
    "costs",
    "equation_8_weights",
    "fairness_loss",
    "gini",
    "groups_by_speed",
    "in_flight",
    "influence",
    "jain",
    "label_distance",
    "label_shares",
    "labels_seen",
    "mean_in_flight",
    "normalized_within_steps",
    "of_fair_share",
    "participating_examples",
    "participation",
    "staleness_over_time",
    "step_bins",
    "summary",
    "wasted",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
