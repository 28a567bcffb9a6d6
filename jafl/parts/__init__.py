"""The parts of an experiment, each made from settings."""

from jafl.parts.data import make_partition, make_source, partition_name
from jafl.parts.model import make_model
from jafl.parts.schedule import PROTOCOLS, READ_BY, make_schedule

__all__ = [
    "PROTOCOLS",
    "READ_BY",
    "make_model",
    "make_partition",
    "make_schedule",
    "make_source",
    "partition_name",
]
