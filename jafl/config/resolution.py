"""From settings as given to those of each run: presets and defaults filled in, and what no run reads refused."""

import dataclasses
from collections.abc import Mapping, Set

import jax

from jafl.config import presets
from jafl.config.builders import filled_in
from jafl.config.builders.data import PRECISIONS
from jafl.config.data_cache import DataCache
from jafl.config.parsing import items, whole_number_in
from jafl.config.settings import DEFAULTS, Settings, readers_by
from jafl.errors import choose, require

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
        (label, presets.resolve(settings, settings.algorithm, seed, alone=len(arms) == 1))
        for label, settings in arms.items()
        for seed in seeds_of(settings)
    ]
    _refuse_unread(arms, {settings.protocol or "" for _, settings in runs})
    readers = readers_by("protocol")

    def as_read(settings: Settings) -> Settings:
        unread = [name for name, protocols in readers.items() if settings.protocol not in protocols]
        return dataclasses.replace(settings, **{name: DEFAULTS[name] for name in unread})

    return [(label, as_read(settings)) for label, settings in runs]


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
