"""Pictures of runs and schedules. Every function returns a matplotlib Figure; ``save`` writes it as a PNG.

Matplotlib is imported when a picture is drawn. Pyplot is never imported, so no screen is needed and no figure stays
in memory. A notebook shows a figure that is the last value of a cell.
"""

from jafl.plots.canvas import png, save
from jafl.plots.clients import influence, participating_examples, participation
from jafl.plots.curves import HORIZONTALS, Run, accuracy, accuracy_panels
from jafl.plots.federations import label_split
from jafl.plots.heat_maps import heat_maps
from jafl.plots.over_time import in_flight, labels_seen, staleness_over_time
from jafl.plots.reports import report_names, reports, weights
from jafl.plots.schedules import staleness, timeline

__all__ = [
    "HORIZONTALS",
    "Run",
    "accuracy",
    "accuracy_panels",
    "heat_maps",
    "in_flight",
    "influence",
    "label_split",
    "labels_seen",
    "participating_examples",
    "participation",
    "png",
    "report_names",
    "reports",
    "save",
    "staleness",
    "staleness_over_time",
    "timeline",
    "weights",
]
