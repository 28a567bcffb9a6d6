"""The host half: who trains when, from which version, and in which memory it is computed. NumPy only."""

from jafl.schedule import delays
from jafl.schedule.asynchronous import asynchronous
from jafl.schedule.delays import DELAYS, Delay
from jafl.schedule.dropout import Dropout
from jafl.schedule.plan import bucket, check_plan, trip_by_trip
from jafl.schedule.synchronous import synchronous

__all__ = [
    "DELAYS",
    "Delay",
    "Dropout",
    "asynchronous",
    "bucket",
    "check_plan",
    "delays",
    "synchronous",
    "trip_by_trip",
]
