"""Checks that all protocols share."""

from fractions import Fraction
from typing import Any

from jafl.base.errors import is_whole_number, require, whole_number
from jafl.schedule.delay import Delay


def check_clients(num_clients: int, setting: str, training: int) -> None:
    """Raises SettingError unless there are clients, at least ``training`` of them."""
    whole_number("num_clients", num_clients, 1)
    require(
        is_whole_number(training) and 1 <= training <= num_clients,
        setting,
        training,
        f"between 1 and the number of clients, {num_clients}",
        f"Lower {setting} or raise num_clients.",
    )


def check_delay_and_seed(delay: Delay, seed: int) -> None:
    """Raises SettingError unless ``delay`` is a law and ``seed`` a whole number."""
    check_delay(delay)
    require(is_whole_number(seed), "seed", seed, "a whole number")


def check_delay(delay: Any) -> None:
    """Raises SettingError unless ``delay`` is a law."""
    allowed = "a law of jafl.delays, jafl.delays.exponential(1.0) for example"
    require(isinstance(delay, Delay), "delay", delay, allowed)


def steps_within(
    server_steps: int | None, client_trips: int | None, *, trips_per_step: float, setting: str
) -> int:
    """The number of server steps: ``server_steps``, or as many whole ones as ``client_trips`` allow.

    trips_per_step: a whole number, or a float, which is the expected one.
    """
    require(
        (server_steps is None) != (client_trips is None),
        "server_steps and client_trips",
        (server_steps, client_trips),
        "given one without the other",
        "Give exactly one of them: after how many server steps, or after how many client trips, the run stops.",
    )
    if server_steps is not None:
        steps = whole_number("server_steps", server_steps, 1)
        allowed = f"such that there are below 2**31 trips, not {steps:,} server steps of {trips_per_step:,}"
        remedy = f"Lower server_steps or {setting}."
        require(steps * max(trips_per_step, 1) < 2**31, "server_steps", steps, allowed, remedy)
        return steps
    client_trips = whole_number("client_trips", client_trips, 1)
    require(
        client_trips >= trips_per_step,
        setting,
        trips_per_step,
        f"at most client_trips ({client_trips}), or it never fills",
        f"Lower {setting} or raise client_trips.",
    )
    if not isinstance(trips_per_step, float):
        return client_trips // trips_per_step
    allowed = f"such that {client_trips:,} trips are below 2**31 server steps"
    require(client_trips < 2**31 * trips_per_step, setting, trips_per_step, allowed, f"Raise {setting}.")
    # Not the sum itself: three times 0.1 is a little more than 0.3.
    return int(client_trips // Fraction(trips_per_step).limit_denominator(10**12))
