"""Checks of arguments that several diagnostics share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jafl.base.errors import require
from jafl.base.given_arrays import as_array
from jafl.records import EventSchedule, check_schedule

Groups = Mapping[str, Sequence[int] | np.ndarray]  # {name of a group: its clients}


def check_has_trips(schedule: EventSchedule) -> None:
    """Raises SettingError for what is no schedule, and for a schedule without applied trips."""
    check_schedule(schedule)
    require(schedule.num_trips, "schedule", "without applied trips", "a schedule with trips")


def float_array(name: str, values: Any) -> np.ndarray:
    """``values`` as float64; raises SettingError for what is made of no numbers."""
    if isinstance(values, (np.ndarray, list, tuple)) or hasattr(values, "__array__"):
        array = as_array(name, values)
        if array.dtype.kind in "biuf":
            return array.astype(np.float64, copy=False)
    require(False, name, values, "an array of numbers")
    raise AssertionError


def per_client(name: str, values: Any, schedule: EventSchedule) -> np.ndarray:
    """``values`` [N] as an array; raises SettingError for another shape."""
    array = as_array(name, values)
    wanted = (schedule.num_clients,)
    require(array.shape == wanted, f"the shape of {name}", array.shape, f"{wanted}, one per client")
    return array


def per_trip(weights: Any, schedule: EventSchedule) -> np.ndarray:
    """``weights`` [J] float64, ones for None; raises SettingError for another shape or a number not finite."""
    if weights is None:
        return np.ones(schedule.num_trips)
    check_schedule(schedule)
    array = float_array("weights", weights)
    wanted = (schedule.num_trips,)
    require(array.shape == wanted, "the shape of weights", array.shape, f"{wanted}, one per applied trip")
    require(np.isfinite(array).all(), "weights", array, "finite")
    return array


def group_numbers(groups: Groups | None, num_clients: int) -> tuple[tuple[str, ...], np.ndarray]:
    """The groups' names [G], and [N] int64 the number of each client's group, -1 for a client without one.

    None stands for one group of all clients. Raises SettingError for an unknown client, or one in two groups.
    """
    if groups is None:
        return ("all clients",), np.zeros(num_clients, np.int64)
    require(groups, "groups", groups, "at least one group of clients")
    number = np.full(num_clients, -1, np.int64)
    for place, (name, members) in enumerate(groups.items()):
        clients = np.asarray(members)
        whole = clients.ndim == 1 and clients.size > 0 and clients.dtype.kind in "iu"
        require(whole, f"groups[{name!r}]", members, "a list of at least one client")
        known = clients.min() >= 0 and clients.max() < num_clients
        require(known, f"groups[{name!r}]", members, f"clients from 0 to {num_clients - 1}")
        once = (number[clients] == -1).all() and len(np.unique(clients)) == len(clients)
        require(once, f"groups[{name!r}]", members, "clients that were not named before")
        number[clients] = place
    return tuple(groups), number
