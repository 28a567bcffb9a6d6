"""What the runs of settings, or of a sweep, would need on chips that are not here, one by one and in all."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jafl.ahead_of_time.forecast import Known, RunForecast, duration, forecast
from jafl.ahead_of_time.topologies import topology
from jafl.config import grid
from jafl.config.data_cache import DataCache
from jafl.config.experiment import make_experiment
from jafl.config.grid import Arms, Override
from jafl.config.resolution import refuse_unread, resolve
from jafl.config.settings import Settings
from jafl.sweeps.grid_runs import Request


def forecast_runs(
    settings: Settings,
    topology_name: str,
    *,
    sweep: str | Mapping[str, Sequence[Any]] = "",
    arms: Arms | None = None,
    overrides: Sequence[Override] = (),
    loaded: DataCache | None = None,
    show: Callable[[str], None] = print,
) -> list[tuple[RunForecast, int]]:
    """Shows the forecast of every run and their sum; nothing is trained but some hundred trips, to time them.

    Of runs that differ in seeds alone the first is compiled, and counts for the others.

    Args:
      settings: those of every run, except what is swept and what an arm sets itself; ``seed`` may list several.
      topology_name: of the chips, as ``jafl.forecast`` takes it.
      sweep: as text (``jafl.config.grid``), or {setting: values}. Default: nothing is swept.
      arms: {label: settings} of what is compared. Default: the algorithms that ``settings`` lists.
      overrides: settings that hold for some arms or under some conditions only.
      loaded: where data sets and models are read. Default: a new ``DataCache``.
      show: gets each text that is meant for the user.

    Returns:
      The forecasts, each with the number of runs for which it counts.

    Raises:
      SettingError: for any setting that cannot work, a topology that does not exist, or a compiler that is missing.
    """
    topology(topology_name)
    compared = grid.algorithm_arms(settings) if arms is None else arms
    grid.check_arms(compared, overrides)
    values = grid.parse(sweep) if isinstance(sweep, str) and sweep else dict(sweep or {})
    request = Request(values, {label: dict(own) for label, own in compared.items()}, settings.seed)
    loaded, known, forecasts = loaded or DataCache(), Known(), list[tuple[RunForecast, int]]()
    conditions = request.conditions(settings, overrides)
    refuse_unread(conditions)
    for condition, arms_there in conditions:
        seeds: dict[str, list[Settings]] = {}
        for label, run in resolve(arms_there, loaded):
            seeds.setdefault(label, []).append(run)
        for label, runs in seeds.items():
            # How many chips is said of those, and not of the devices here, which time some trips.
            here = runs[0].changed({"devices": None})
            experiment = make_experiment(label, here, loaded, must_fit=False)
            run_forecast = forecast(experiment, topology_name, devices=runs[0].devices, known=known)
            where = f"{grid.folder(condition)}, " if condition else ""
            times = f", and {len(runs) - 1} more with other seeds" if len(runs) > 1 else ""
            show(f"{where}{experiment.name}{times}\n{run_forecast}")
            forecasts.append((run_forecast, len(runs)))
    if sum(number for _, number in forecasts) > 1:
        show(total(forecasts, topology_name))
    return forecasts


def total(forecasts: Sequence[tuple[RunForecast, int]], topology_name: str) -> str:
    """A line on all runs together, one after the other."""
    runs = sum(number for _, number in forecasts)
    left_out = sum(number for one, number in forecasts if not one.fits)
    here = [(one.measured_seconds, number) for one, number in forecasts]
    text = f"{runs:,} runs, {sum(one.trips * number for one, number in forecasts):,} trips, one after the other: "
    text += f"{_sum(here)} here by the clock"
    return f"{text}; {left_out:,} of them do not fit on {topology_name}" if left_out else text


def _sum(seconds: Sequence[tuple[float | None, int]]) -> str:
    known = [each * number for each, number in seconds if each is not None]
    text = duration(sum(known)) if known else "unknown"
    return f"{text} (and what is not known of others)" if known and len(known) < len(seconds) else text
