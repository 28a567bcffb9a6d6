"""The parts of an experiment, each made from settings."""

from jafl.config.builders.data import (
    filled_in,
    make_federation,
    make_inputs,
    make_partition,
    make_source,
    partition_name,
)
from jafl.config.builders.model import make_model
from jafl.config.builders.schedule import PROTOCOLS, READ_BY, make_schedule

__all__ = [
    "PROTOCOLS",
    "READ_BY",
    "filled_in",
    "make_federation",
    "make_inputs",
    "make_model",
    "make_partition",
    "make_schedule",
    "make_source",
    "partition_name",
]
