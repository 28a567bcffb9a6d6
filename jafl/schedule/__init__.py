"""The host half: who trains when, from which version, and in which memory it is computed. NumPy only."""

from jafl.schedule import availability, delays
from jafl.schedule.asynchronous import asynchronous
from jafl.schedule.availability import AVAILABILITIES, Availability
from jafl.schedule.compass import compass
from jafl.schedule.delay import Delay
from jafl.schedule.delays import DELAYS
from jafl.schedule.drawn_staleness import drawn_staleness
from jafl.schedule.dropout import Dropout
from jafl.schedule.open_arrivals import open_arrivals
from jafl.schedule.polled import polled
from jafl.schedule.queued import queued
from jafl.schedule.synchronous import synchronous
from jafl.schedule.tiered import tiered
from jafl.schedule.traces import DurationTrace, duration_trace, read_availability

__all__ = [
    "AVAILABILITIES",
    "DELAYS",
    "Availability",
    "Delay",
    "Dropout",
    "DurationTrace",
    "asynchronous",
    "availability",
    "compass",
    "delays",
    "drawn_staleness",
    "duration_trace",
    "open_arrivals",
    "polled",
    "queued",
    "read_availability",
    "synchronous",
    "tiered",
]
