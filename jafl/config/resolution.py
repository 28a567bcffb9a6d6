"""From settings as given to those of each run: presets and defaults filled in, and what no run reads refused."""

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

import jax

from jafl.config import presets
from jafl.config.builders import filled_in, make_rule
from jafl.config.builders.data import PRECISIONS
from jafl.config.data_cache import DataCache
from jafl.config.parsing import items, whole_number_in
from jafl.config.settings import (
    DEFAULTS,
    EXCLUSIVE,
    TRIPS_PER_STEP,
    TYPES,
    Settings,
    excluded_by,
    readers_by,
)
from jafl.errors import choose, require, unknown_name
from jafl.precision import COMPUTE_DTYPES, MATMUL_PRECISIONS
from jafl.records import Rule

LARGEST_SEED = 2**32 - 1  # JAX's random keys take no more without float64


def resolve(arms: Mapping[str, Settings], loaded: DataCache) -> list[tuple[str, Settings]]:
    """(label, settings of one run with every default filled in) for each arm and seed, the seeds of one together.

    arms: {label: settings}, each of one algorithm; several arms are compared with each other.

    Raises:
      SettingError: for any setting that cannot work, as far as it shows before a schedule is made.
    """
    for settings in arms.values():
        _check(settings)
    _resolved(arms)  # refuses what cannot work before the data set is read
    return _resolved({label: filled_in(arm, loaded.source(arm)) for label, arm in arms.items()})


def _resolved(arms: Mapping[str, Settings]) -> list[tuple[str, Settings]]:
    """Each run with what its algorithm fills in, and without what its protocol does not read."""
    runs = [
        (label, resolve_run(settings, settings.algorithm, seed, alone=len(arms) == 1))
        for label, settings in arms.items()
        for seed in seeds_of(settings)
    ]
    _refuse_unread(arms, {settings.protocol or "" for _, settings in runs})
    readers = readers_by("protocol")

    def as_read(settings: Settings) -> Settings:
        unread = [name for name, protocols in readers.items() if settings.protocol not in protocols]
        return dataclasses.replace(settings, **{name: DEFAULTS[name] for name in unread})

    return [(label, as_read(settings)) for label, settings in runs]


def resolve_run(settings: Settings, algorithm: str, seed: int, *, alone: bool = True) -> Settings:
    """One run's settings: one algorithm, one seed, and every None that a preset or a rule fills in, filled in.

    alone: False where several algorithms are compared: one that is defined for a single buffer size then takes it,
    whatever ``buffer_size`` says for the others.

    Raises SettingError for an unknown algorithm, with the nearest name, and for settings that exclude each other.
    """
    if algorithm not in presets.names():
        raise unknown_name("algorithm", algorithm, presets.names())
    _refuse_both(settings)
    settings = dataclasses.replace(
        settings, **_of_preset(settings, algorithm), algorithm=algorithm, seed=str(seed)
    )
    size = choose("protocol", settings.protocol or "", TRIPS_PER_STEP)
    rule = make_rule(settings).build()
    filled = dataclasses.replace(settings, **_of_rule(settings, rule, size, alone))
    require(
        rule.buffer_size in (None, getattr(filled, size)),
        size,
        getattr(filled, size),
        f"{rule.buffer_size} for {algorithm}, which is not defined for another number of trips per server step",
    )
    return filled


def _refuse_both(settings: Settings) -> None:
    """Raises SettingError where two settings are given that exclude each other."""
    for name, partner in EXCLUSIVE:
        value, partners = getattr(settings, name), getattr(settings, partner)
        allowed = f"left out where {partner} is given ({partners!r})"
        require(value is None or partners is None, name, value, allowed)


def _of_preset(settings: Settings, algorithm: str) -> dict[str, Any]:
    """What an algorithm's preset says of the settings that are not given."""
    given = {name for name in TYPES if getattr(settings, name) is not None}
    left_out = {"rule"} | given | excluded_by(given)
    if settings.server_optimizer not in (None, "sgd"):
        left_out.add("server_momentum")  # a preset's is for sgd
    preset = presets.COMMON | presets.PRESETS.get(algorithm, {})
    return {name: value for name, value in preset.items() if name not in left_out}


def _of_rule(settings: Settings, rule: Rule, size: str, alone: bool) -> dict[str, Any]:
    """What follows from the rule and the protocol; ``size``: the setting that holds the trips per server step."""
    filled: dict[str, Any] = {}
    if settings.restart is None and settings.protocol in ("asynchronous", "open_arrivals"):
        filled["restart"] = "at_once"
    if settings.concurrency is None and settings.protocol != "drawn_staleness":
        filled["concurrency"] = settings.num_clients if rule.initial_round else min(20, settings.num_clients)
    if size == "buffer_size" and (settings.buffer_size is None or (rule.buffer_size and not alone)):
        filled["buffer_size"] = rule.buffer_size or 10
    if size == "cohort_size" and settings.cohort_size is None:
        filled["cohort_size"] = filled.get("concurrency", settings.concurrency)
    if settings.local_steps is None and settings.local_epochs is None:
        filled["local_epochs"] = 1
    if settings.client_trips is None and settings.server_steps is None:
        filled["client_trips"] = 10000
    return filled


def seeds_of(settings: Settings) -> list[int]:
    """The seeds that the settings list.

    Raises SettingError if one is no whole number, too large, or there twice.
    """
    seeds = [whole_number_in("seed", seed) for seed in items("seed", settings.seed)]
    require(
        min(seeds) >= 0 and max(seeds) <= LARGEST_SEED, "seed", settings.seed, f"from 0 to {LARGEST_SEED}"
    )
    require(len(set(seeds)) == len(seeds), "seed", settings.seed, "a list without repetitions")
    return seeds


def _check(settings: Settings) -> None:
    """Raises SettingError for what can be said of settings whatever the algorithm."""
    dtype = choose("precision", settings.precision, PRECISIONS)
    require(
        jax.dtypes.canonicalize_dtype(dtype) == dtype,
        "precision",
        settings.precision,
        "float32 while JAX computes in 32 bits",
        "Call jax.config.update('jax_enable_x64', True) first.",
    )
    for name, known in (("matmul_precision", MATMUL_PRECISIONS), ("compute_dtype", COMPUTE_DTYPES)):
        value = getattr(settings, name)
        choose(name, value, dict.fromkeys(known))
        allowed = "float32 where precision is float64: nothing is rounded then"
        require(value == "float32" or settings.precision == "float32", name, value, allowed)
    target = settings.target_accuracy
    require(0 < target <= 1, "target_accuracy", target, "above 0, at most 1")


def _refuse_unread(arms: Mapping[str, Settings], protocols: Set[str]) -> None:
    """Raises SettingError for a setting that is given, but that none of the runs' protocols reads."""
    for name, readers in sorted(readers_by("protocol").items()):
        if protocols.isdisjoint(readers):
            allowed = f"left out: {' and '.join(sorted(protocols))} training does not read it"
            for settings in arms.values():
                value = getattr(settings, name)
                remedy = f"It is for --protocol={' or '.join(readers)}."
                require(value == DEFAULTS[name], name, value, allowed, remedy)
