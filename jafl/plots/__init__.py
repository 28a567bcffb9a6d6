"""Pictures of runs and schedules. Every function returns a matplotlib Figure; ``save`` writes it as a PNG.

Matplotlib is imported when a picture is asked for, and pyplot never: nothing here needs a screen or keeps
figures alive. A figure that is the last value of a notebook cell shows itself.
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
