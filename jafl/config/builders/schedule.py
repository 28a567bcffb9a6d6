"""The event schedule, from settings: protocol, delays, who is there and who leaves."""

import inspect
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jafl.base.errors import SettingError, choose, require, unknown_name
from jafl.config.declaration import FILES
from jafl.config.parsing import items, labels_in, refused_as
from jafl.config.settings import DECLARED, DEFAULTS, Settings, choice_arguments
from jafl.records import EventSchedule
from jafl.schedule import (
    DELAYS,
    Availability,
    Dropout,
    asynchronous,
    availability,
    delays,
    drawn_staleness,
    duration_trace,
    open_arrivals,
    read_availability,
    synchronous,
)
from jafl.schedule.durations import draw_durations

PROTOCOLS: dict[str, Callable[..., EventSchedule]] = {
    "asynchronous": asynchronous,
    "synchronous": synchronous,
    "open_arrivals": open_arrivals,
    "drawn_staleness": drawn_staleness,
}
# {the delay's argument, as a refusal has it: the setting that fills it}
DELAY_ARGUMENTS = {
    f"the delay's {declared.argument}": name
    for name, declared in DECLARED.items()
    if declared.group == "delay" and declared.argument
}


# Clients are there for exponential times: the chance of a time so many times as long as the mean is 0 in float64.
NO_CHANCE = 700.0
LARGEST_SIGMA = 30.0  # the median is then exp(-450) of the mean
AVAILABILITY_ARGUMENTS = {
    f"the availability's {declared.argument}": name
    for name, declared in DECLARED.items()
    if declared.group == "presence" and declared.argument
}


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
    if "start_rate" in parameters:
        arguments["start_rate"] = _start_rate(settings)
    if "participation" in parameters:
        arguments["participation"] = _participation(settings)
    if "initial_round" in parameters:
        arguments["initial_round"] = initial_round
    else:
        remedy = f"{settings.algorithm} needs every client to train at the initial model first."
        allowed = "asynchronous or drawn_staleness"
        require(not initial_round, "protocol", settings.protocol, allowed, remedy)
    arguments["delay"] = make_delay(settings, num_examples, model_bytes)
    _refuse_short_presence(settings, arguments["delay"], len(num_examples))
    try:
        with refused_as(AVAILABILITY_ARGUMENTS):
            return protocol(**arguments)
    except SettingError as error:
        if error.setting.startswith("the delay of client"):
            raise error.within("delay", setting="delay") from None
        raise


def _refuse_short_presence(settings: Settings, delay: delays.Delay, num_clients: int) -> None:
    """Raises SettingError where clients go away so soon that none of their trips would ever come to its end."""
    loses = settings.lose_trips in (None, True)
    if settings.availability != "on_and_off" or not loses or settings.mean_on <= 0:
        return
    clients = np.arange(min(num_clients, 1000))
    typical = float(np.median(draw_durations(delay, int(settings.seed), clients, np.zeros_like(clients))))
    least = typical / NO_CHANCE
    allowed = f"at least {least:.2g}: trips last about {typical:.3g}, and are lost if their client goes away"
    require(settings.mean_on >= least, "mean_on", settings.mean_on, allowed)


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


def _start_rate(settings: Settings) -> float:
    """Starts per unit of time: as asked for, or such that ``concurrency`` clients are under way on average."""
    if settings.start_rate is not None:
        return settings.start_rate
    require(settings.delay_mean > 0, "delay_mean", settings.delay_mean, "above 0 unless start_rate is given")
    return (settings.concurrency or 1) / settings.delay_mean


def make_availability(settings: Settings, num_clients: int) -> Availability | None:
    """When clients are there."""
    name = settings.availability
    if name == "always":
        return None
    if name in ("diurnal", "on_and_off"):
        law: Callable[..., Availability] = getattr(availability, name)
        names = choice_arguments("availability", name)
        law_arguments = {argument: getattr(settings, setting) for argument, setting in names.items()}
        law_arguments = {argument: value for argument, value in law_arguments.items() if value is not None}
        with refused_as(AVAILABILITY_ARGUMENTS):
            return law(**law_arguments)
    if pathlib.Path(name).suffix in FILES:
        with refused_as({"cycle_after": "availability_period"}):
            trace = read_availability(name, cycle_after=settings.availability_period)
        trace.check_clients(num_clients)
        loses_trips = {} if settings.lose_trips is None else {"loses_trips": settings.lose_trips}
        return availability.windows(trace.offsets, trace.start, trace.end, trace.period, **loses_trips)
    raise unknown_name("availability", name, ("always", "diurnal", "on_and_off", "a .csv or .npz file"))


def make_dropout(settings: Settings) -> Dropout | None:
    """Who leaves for ever, and when."""
    moments = {name: getattr(settings, f"dropout_{name}") for name in ("step", "time", "trips")}
    names_there = [f"dropout_{name}" for name, value in moments.items() if value is not None]
    fraction = settings.dropout_fraction
    if not fraction:
        return None
    entries = ", ".join(f"{name}={getattr(settings, name)}" for name in names_there) or "none of them"
    remedy = "They say when the clients leave." if not names_there else "Leave out the others."
    names = "dropout_step, dropout_time or dropout_trips"
    allowed = f"given with exactly one of {names}; given: {entries}"
    require(len(names_there) == 1, "dropout_fraction", fraction, allowed, remedy)
    arguments = {
        "fraction": "dropout_fraction",
        "server_step": "dropout_step",
        "time": names_there[0],
        "trips": names_there[0],
    }
    with refused_as({f"the dropout's {name}": setting for name, setting in arguments.items()}):
        return Dropout(fraction, server_step=moments["step"], time=moments["time"], trips=moments["trips"])


def make_delay(settings: Settings, num_examples: np.ndarray, model_bytes: float) -> delays.Delay:
    """The law of trip durations; ``num_examples`` [N] of each client, ``model_bytes`` of the parameters."""
    draws: dict[str, Callable[[delays.Delay], delays.Delay]] = {
        "per_trip": lambda law: law,
        "per_client": delays.once_per_client,
    }
    make_law = choose("delay_draw", settings.delay_draw, draws)
    with refused_as(DELAY_ARGUMENTS):
        law = _from_file(settings) or make_law(_computing(settings, num_examples))
        law = _with_network(settings, law, model_bytes)
        return _throttled(settings, law, len(num_examples))


def _from_file(settings: Settings) -> delays.Delay | None:
    """Recorded durations, if ``delay`` is a file; SettingError for a name that is neither a file nor a law."""
    if pathlib.Path(settings.delay).suffix in FILES:
        return duration_trace(settings.delay, cycled=settings.delay_trace_cycled)
    if settings.delay not in DELAYS:
        raise unknown_name("delay", settings.delay, [*DELAYS, "a .csv or .npz file"])
    return None


def _computing(settings: Settings, num_examples: np.ndarray) -> delays.Delay:
    """How long training takes, before it is drawn for each trip or once per client."""
    if settings.delay == "groups":
        with refused_as({}, otherwise="delay_groups"):
            groups = delays.groups(_delay_groups(settings.delay_groups))
            groups.check_clients(len(num_examples))
        return groups
    law, factor = _law(settings, num_examples, 1.0), settings.delay_slow_factor
    if not settings.delay_slow_fraction:
        return law
    require(0 < factor < np.inf, "delay_slow_factor", factor, "a finite number above 0")
    return delays.slow_fraction(law, _law(settings, num_examples, factor), settings.delay_slow_fraction)


def _with_network(settings: Settings, law: delays.Delay, model_bytes: float) -> delays.Delay:
    """``law`` with the times of download and upload, where a bandwidth is given."""
    means = (settings.delay_download_bandwidth, settings.delay_upload_bandwidth)
    if means == (None, None):
        return law
    sigma = settings.delay_bandwidth_sigma
    require(0 <= sigma < np.inf, "delay_bandwidth_sigma", sigma, "a finite number, at least 0")
    for way, mean in zip(("download", "upload"), means, strict=True):
        fits = mean is None or 0 < mean < np.inf
        require(fits, f"delay_{way}_bandwidth", mean, "a finite number above 0")
    bandwidths = [
        np.inf if mean is None else delays.log_normal(mean, sigma) if sigma else mean for mean in means
    ]
    size = model_bytes if settings.delay_model_bytes is None else settings.delay_model_bytes
    return delays.with_network(law, size, *bandwidths)


def _throttled(settings: Settings, law: delays.Delay, num_clients: int) -> delays.Delay:
    """``law`` with some clients at a share of their speed."""
    for part in filter(None, settings.delay_throttled.split(";")):
        clients, colon, share = part.partition(":")
        fits = colon and re.fullmatch(r"\s*\d*\.?\d+\s*", share)
        require(fits, "delay_throttled", settings.delay_throttled, "clients:share;..., as in 0-4:0.5")
        slowed = labels_in("delay_throttled", clients)
        require(max(slowed) < num_clients, "delay_throttled", part, f"clients below {num_clients}")
        with refused_as({}, otherwise="delay_throttled"):
            law = delays.throttled(law, float(share), slowed)
    return law


def _law(settings: Settings, num_examples: np.ndarray, factor: float) -> delays.Delay:
    """The law of trip durations, ``factor`` times as long."""
    name, mean, low, high = settings.delay, settings.delay_mean, settings.delay_low, settings.delay_high
    require(np.isfinite(mean) and mean >= 0, "delay_mean", mean, "a finite number, at least 0")
    require(mean > 0 or name in ("constant", "uniform"), "delay_mean", mean, f"above 0 where delay is {name}")
    if name == "uniform":
        if high is None:
            allowed = f"at most delay_mean ({mean:g}) unless delay_high is given"
            require(low <= mean, "delay_low", low, allowed)
        return delays.uniform(factor * low, factor * (2 * mean - low if high is None else high))
    mean = factor * mean
    laws: dict[str, Callable[[], delays.Delay]] = {
        "constant": lambda: delays.constant(mean),
        "half_normal": lambda: delays.half_normal(mean * np.sqrt(np.pi / 2)),
        "exponential": lambda: delays.exponential(mean),
        "log_normal": lambda: delays.log_normal(mean, _spread(settings.delay_sigma)),
        "gamma": lambda: delays.gamma(mean, settings.delay_shape),
        "pareto": lambda: delays.pareto(mean, settings.delay_shape),
        "proportional_to_examples": lambda: delays.proportional_to_examples(
            num_examples, mean / np.mean(num_examples)
        ),
    }
    return laws[name]()


def _spread(sigma: float) -> float:
    """``delay_sigma``; raises SettingError for one with which durations are 0 or infinite."""
    allowed = f"at most {LARGEST_SIGMA:g}: with more, nearly all durations are 0"
    require(not sigma > LARGEST_SIGMA, "delay_sigma", sigma, allowed)
    return sigma


def _delay_groups(text: str) -> list[tuple[int, delays.Delay]]:
    """``10:uniform(1,2);5:exponential(9)`` as [(10, uniform(1, 2)), (5, exponential(9))]."""
    laws = ("constant", "uniform", "half_normal", "exponential", "log_normal", "gamma", "pareto")
    simple: dict[str, Callable[..., delays.Delay]] = {name: DELAYS[name] for name in laws}
    groups = []
    for part in text.split(";"):
        wrong = SettingError(
            f"delay_groups is {text!r}, but {part!r} is not clients:law(numbers), as in 10:uniform(1,2).",
            setting="delay_groups",
            value=text,
        )
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\w+)\(([^()]*)\)\s*", part)
        if not match:
            raise wrong
        law = choose("a law in delay_groups", match[2], simple)
        try:
            groups.append((int(match[1]), law(*(float(number) for number in match[3].split(",")))))
        except SettingError:
            raise
        except (TypeError, ValueError) as error:  # too many numbers, or not numbers
            raise wrong from error
    return groups
