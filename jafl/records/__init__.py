"""The records that cross the boundaries between jafl's packages.

Nothing here imports JAX, so that schedules, plans and data can be made without it.

Letters in shapes: J applied client trips in the order in which the server applies them, T server
steps, N clients, ``*P`` the shape of one parameter leaf. Times are in the delay's unit of simulated time.
"""

from jafl.records.histories import History
from jafl.records.rules import Arrival, ClientMemoryRequest, Recall, Requirements, Rounding, Rule
from jafl.records.schedules import EventSchedule, ExecutionPlan, check_schedule
from jafl.records.types import (
    Array,
    ArrayTree,
    Buffer,
    Columns,
    Gradients,
    Params,
    Report,
    RuleState,
    StoredValue,
    Updates,
)

__all__ = [
    "Array",
    "ArrayTree",
    "Arrival",
    "Buffer",
    "ClientMemoryRequest",
    "Columns",
    "EventSchedule",
    "ExecutionPlan",
    "Gradients",
    "History",
    "Params",
    "Recall",
    "Report",
    "Requirements",
    "Rounding",
    "Rule",
    "RuleState",
    "StoredValue",
    "Updates",
    "check_schedule",
]
