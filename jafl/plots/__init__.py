"""Pictures of runs and schedules. Every function returns a matplotlib Figure; ``save`` writes it as a PNG.

Matplotlib is imported when a picture is drawn. Pyplot is never imported, so no screen is needed and no figure stays
in memory. A notebook shows a figure that is the last value of a cell.
"""

from jafl.plots.canvas import is_constant, png, save
from jafl.plots.clients import influence, participating_examples, participation
from jafl.plots.curves import HORIZONTALS, Run, accuracy, accuracy_panels
from jafl.plots.federations import label_split
from jafl.plots.heat_maps import heat_maps
from jafl.plots.over_time import in_flight, in_flight_changes, labels_seen, staleness_over_time
from jafl.plots.privacy import epsilon_per_client, signal_and_noise
from jafl.plots.reports import report_names, reports, reports_change, weights
from jafl.plots.schedules import staleness, timeline

__all__ = [
    "HORIZONTALS",
    "Run",
    "accuracy",
    "accuracy_panels",
    "epsilon_per_client",
    "heat_maps",
    "in_flight",
    "in_flight_changes",
    "influence",
    "is_constant",
    "label_split",
    "labels_seen",
    "participating_examples",
    "participation",
    "png",
    "report_names",
    "reports",
    "reports_change",
    "save",
    "signal_and_noise",
    "staleness",
    "staleness_over_time",
    "timeline",
    "weights",
]
__dir__ = __all__.copy  # for ``dir`` and for completion at a prompt
