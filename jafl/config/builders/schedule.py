"""The event schedule, from settings: protocol, delays, who is there and who leaves."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, choose, refusal, require
from jafl.config.calls import grammar
from jafl.config.parsing import items
from jafl.config.settings import DEFAULTS, Settings
from jafl.records import EventSchedule
from jafl.schedule import (
    Availability,
    AvailabilityTrace,
    Dropout,
    asynchronous,
    availability,
    delays,
    drawn_staleness,
    open_arrivals,
    synchronous,
)
from jafl.schedule.arguments import as_availability
from jafl.schedule.durations import draw_durations

PROTOCOLS: dict[str, Callable[..., EventSchedule]] = {
    "asynchronous": asynchronous,
    "synchronous": synchronous,
    "open_arrivals": open_arrivals,
    "drawn_staleness": drawn_staleness,
}
# Clients are there for exponential times: the chance of a time so many times as long as the mean is 0 in float64.
NO_CHANCE = 700.0


def make_schedule(
    settings: Settings, num_examples: np.ndarray, *, initial_round: bool, model_bytes: float
) -> EventSchedule:
    """The event schedule of a resolved run: its protocol gets the settings that bear the names of its parameters.

    num_examples: [N] of each client; initial_round: its rule needs one; model_bytes: of the parameters.
    """
    protocol = choose("protocol", settings.protocol or "", PROTOCOLS)
    trips = settings.client_trips
    require(trips is None or trips >= 1, "client_trips", trips, "at least 1")
    parameters = inspect.signature(protocol).parameters
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in parameters if name in DEFAULTS}
    arguments |= {"num_clients": len(num_examples), "seed": int(settings.seed)}
    if "dropout" in parameters:
        arguments["dropout"] = make_dropout(settings)
    if "availability" in parameters:
        arguments["availability"] = make_availability(settings, len(num_examples))
    arguments["delay"] = make_delay(settings, num_examples, model_bytes)
    if "start_rate" in parameters:
        arguments["start_rate"] = _start_rate(settings, arguments["delay"])
    if "participation" in parameters:
        arguments["participation"] = _participation(settings)
    if "initial_round" in parameters:
        arguments["initial_round"] = initial_round
    else:
        remedy = f"{settings.algorithm} needs every client to train at the initial model first."
        allowed = "asynchronous or drawn_staleness"
        require(not initial_round, "protocol", settings.protocol, allowed, remedy)
    _refuse_short_presence(settings, arguments["delay"], arguments.get("availability"), len(num_examples))
    try:
        return protocol(**arguments)
    except SettingError as error:
        law, _, argument = error.setting.partition("'s ")
        if law == "the availability":
            raise error.of(f"availability.{argument}") from error
        if error.setting.startswith("the delay of client"):
            raise error.within("delay", setting="delay") from None
        for setting in ("availability", "dropout"):
            if f" of the {setting}" in error.setting:
                raise error.within(setting, setting=setting) from None
        raise


def _refuse_short_presence(settings: Settings, delay: delays.Delay, law: Any, num_clients: int) -> None:
    """Raises SettingError where clients go away so soon that none of their trips would ever come to its end."""
    if not isinstance(law, availability.on_and_off) or not law.loses_trips:
        return
    clients = np.arange(min(num_clients, 1000))
    typical = float(np.median(draw_durations(delay, int(settings.seed), clients, np.zeros_like(clients))))
    least = typical / NO_CHANCE
    allowed = f"at least {least:.2g}: trips last about {typical:.3g}, and are lost if their client goes away"
    require(law.mean_on >= least, "availability.mean_on", law.mean_on, allowed)


def _participation(settings: Settings) -> float | list[float] | None:
    """With which probability clients take part in a round: one number for all, or one for each."""
    if not settings.participation:
        return None
    allowed = "a probability from 0 to 1, or one for each client with commas between them"
    try:
        chances = [float(text) for text in items("participation", settings.participation)]
    except ValueError:
        chances = []
    require(chances, "participation", settings.participation, allowed)
    return chances[0] if len(chances) == 1 else chances


def _start_rate(settings: Settings, law: delays.Delay) -> float:
    """Starts per unit of time: as asked for, or such that ``concurrency`` clients are under way on average."""
    if settings.start_rate is not None:
        return settings.start_rate
    # Of a law made of others, the mean of the first: throttled clients and networks come on top.
    while isinstance(
        law, (delays.once_per_client, delays.slow_fraction, delays.throttled, delays.with_network)
    ):
        law = law.inside()[0]
    mean: float | None = getattr(law, "mean", None)
    if not mean:
        remedy = "It says how many trips start in a unit of simulated time."
        raise refusal(
            "start_rate", None, f"given where delay is {settings.delay}, which tells no mean", remedy
        )
    return (settings.concurrency or 1) / mean


def make_availability(settings: Settings, num_clients: int) -> Availability | None:
    """When clients are there."""
    law = grammar("availability").make(settings.availability)
    if isinstance(law, AvailabilityTrace):
        law.check_clients(num_clients)
    return as_availability(law)


def make_dropout(settings: Settings) -> Dropout | None:
    """Who leaves for ever, and when; None where nobody does."""
    law: Dropout | None = grammar("dropout").make(settings.dropout)
    return None if law is None or law.fraction == 0 else law


def make_delay(settings: Settings, num_examples: np.ndarray, model_bytes: float) -> delays.Delay:
    """The law of trip durations; ``num_examples`` [N] of each client, ``model_bytes`` of the parameters."""
    supplied = {"num_examples": num_examples, "model_bytes": model_bytes}
    law: delays.Delay = grammar("delay").make(settings.delay, **supplied)
    try:
        law.check_clients(len(num_examples))
    except SettingError as error:
        raise error.within("delay", setting="delay") from None
    return law
