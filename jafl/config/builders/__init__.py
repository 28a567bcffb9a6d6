"""Builders: each makes one ingredient of an experiment from settings."""

from jafl.config.builders.algorithm import (
    make_client_optimizer,
    make_client_work,
    make_rule,
    make_server_optimizer,
)
from jafl.config.builders.data import (
    filled_in,
    make_federation,
    make_inputs,
    make_partition,
    make_source,
    partition_text,
)
from jafl.config.builders.model import make_model
from jafl.config.builders.schedule import make_dropout, make_schedule

__all__ = [
    "filled_in",
    "make_client_optimizer",
    "make_client_work",
    "make_dropout",
    "make_federation",
    "make_inputs",
    "make_model",
    "make_partition",
    "make_rule",
    "make_schedule",
    "make_server_optimizer",
    "make_source",
    "partition_text",
]
