"""The event schedule, from settings: protocol, delays, who is there and who leaves."""

from typing import Any

import numpy as np

from jafl.base.errors import SettingError, require
from jafl.config.calls import WITH_INITIAL_ROUND, grammar
from jafl.config.settings import Settings
from jafl.records import EventSchedule
from jafl.schedule import Dropout, availability, delays
from jafl.schedule.arguments import as_availability, check_dropout
from jafl.schedule.checks import check_delay
from jafl.schedule.durations import draw_durations
from jafl.schedule.local_steps import DelayOfSteps

# Clients are there for exponential times: the chance of a time so many times as long as the mean is 0 in float64.
NO_CHANCE = 700.0


def make_schedule(
    settings: Settings,
    num_examples: np.ndarray,
    *,
    initial_round: bool,
    model_bytes: float,
    upload_bytes: float | None = None,
) -> EventSchedule:
    """The event schedule of a resolved run: its protocol gets the settings that bear the names of its parameters.

    num_examples: [N] of each client; initial_round: its rule needs one; model_bytes: of what a client downloads;
    upload_bytes: of what it sends, None where that is as large.
    """
    clients = len(num_examples)
    presence = as_availability(grammar("availability").make(settings.availability))
    law = make_delay(settings, num_examples, model_bytes, upload_bytes)
    protocol = grammar("protocol")
    name = protocol.read(settings.protocol).name
    remedy = f"{settings.algorithm_name} needs every client to train at the initial model first."
    fits = name in WITH_INITIAL_ROUND or not initial_round
    require(fits, "protocol", name, " or ".join(WITH_INITIAL_ROUND), remedy)
    _refuse_short_presence(settings, law, presence, clients)
    try:
        schedule: EventSchedule = protocol.make(
            settings.protocol,
            num_clients=clients,
            seed=int(settings.seed),
            delay=law,
            availability=presence,
            dropout=make_dropout(settings),
            initial_round=initial_round,
        )
        return schedule
    except SettingError as refused:
        # What the factory itself says of the other settings, before it was said of the protocol.
        error = refused.__cause__ if isinstance(refused.__cause__, SettingError) else refused
        if not error.setting:  # as of a schedule that starves: it says itself which settings may be at fault
            raise error from None
        place, _, argument = error.setting.partition("'s ")
        if place == "the availability":
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
    whole = DelayOfSteps(delay, 1)  # a trip of one local step, where durations depend on these
    typical = float(np.median(draw_durations(whole, int(settings.seed), clients, np.zeros_like(clients))))
    least = typical / NO_CHANCE
    allowed = f"at least {least:.2g}: trips last about {typical:.3g}, and are lost if their client goes away"
    require(law.mean_on >= least, "availability.mean_on", law.mean_on, allowed)


def make_dropout(settings: Settings) -> Dropout | None:
    """Who leaves for ever, and when; None where nobody does."""
    law: Dropout | None = grammar("dropout").make(settings.dropout)
    check_dropout(law)
    return None if law is None or law.fraction == 0 else law


def make_delay(
    settings: Settings, num_examples: np.ndarray, model_bytes: float, upload_bytes: float | None = None
) -> delays.Delay:
    """The law of trip durations.

    num_examples: [N] of each client. model_bytes, upload_bytes: as of ``make_schedule``.
    """
    supplied = {"num_examples": num_examples, "model_bytes": model_bytes, "upload_bytes": upload_bytes}
    law: delays.Delay = grammar("delay").make(settings.delay, **supplied)
    check_delay(law)
    try:
        law.check_clients(len(num_examples))
    except SettingError as error:
        raise error.within("delay", setting="delay") from None
    if upload_bytes is not None:
        _refuse_other_model(law, model_bytes, upload_bytes)
    return law


def _refuse_other_model(law: delays.Delay, model_bytes: float, upload_bytes: float) -> None:
    """Raises SettingError where the network sends a model of another size than that whose updates are compressed."""
    if isinstance(law, delays.with_network) and law.model_bytes != model_bytes:
        require(
            law.upload_bytes != upload_bytes,
            "delay.upload_bytes",
            None,
            f"a number where updates are compressed and delay.model_bytes is {law.model_bytes:,.0f}",
            f"The model that trains has {model_bytes:,.0f} bytes, its compressed updates {upload_bytes:,.0f}: "
            "give both sizes, or neither.",
        )
    for each in law.inside():
        _refuse_other_model(each, model_bytes, upload_bytes)
