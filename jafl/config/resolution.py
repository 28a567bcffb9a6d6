"""From settings as given to those of each run: presets and defaults filled in, and what no run reads refused."""

import dataclasses
from collections.abc import Mapping

import jax

from jafl.config import presets
from jafl.config.builders import READ_BY, filled_in
from jafl.config.builders.data import PRECISIONS
from jafl.config.data_cache import DataCache
from jafl.config.parsing import items, whole_number_in
from jafl.config.settings import DEFAULTS, Settings
from jafl.errors import choose, require

LARGEST_SEED = 2**32 - 1  # JAX's random keys take no more without float64


def resolve(one_each: Mapping[str, Settings], loaded: DataCache) -> list[tuple[str, Settings]]:
    """(label, settings of one run with every default filled in) for each arm and seed, the seeds of one together.

    one_each: {label: settings}, each of one algorithm; several arms are compared with each other.

    Raises:
      SettingError: for any setting that cannot work, as far as it shows before a schedule is made.
    """
    for settings in one_each.values():
        _check(settings)
    alone = len(one_each) == 1

    def resolved(one_each: Mapping[str, Settings]) -> list[tuple[str, Settings]]:
        found = [
            (label, presets.resolve(settings, settings.algorithm, seed, alone=alone))
            for label, settings in one_each.items()
            for seed in seeds_of(settings)
        ]
        return _as_read(one_each, found)

    resolved(one_each)  # refuses what cannot work before the data set is read
    return resolved({label: filled_in(one, loaded.source(one)) for label, one in one_each.items()})


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
    require(
        0 < settings.target_accuracy <= 1, "target_accuracy", settings.target_accuracy, "above 0, at most 1"
    )


def _as_read(
    given: Mapping[str, Settings], resolved: list[tuple[str, Settings]]
) -> list[tuple[str, Settings]]:
    """Each run without the settings that its protocol does not read; refuses one that no run reads."""
    for_some = set().union(*READ_BY.values())
    read = [READ_BY.get(one.protocol or "", for_some) for _, one in resolved]
    for name in sorted(for_some - set().union(*read)):
        readers = " or ".join(protocol for protocol, names in READ_BY.items() if name in names)
        protocols = " and ".join(sorted({one.protocol or "" for _, one in resolved}))
        allowed = f"left out: {protocols} training does not read it"
        for settings in given.values():
            value = getattr(settings, name)
            require(value == DEFAULTS[name], name, value, allowed, f"It is for --protocol={readers}.")
    return [
        (label, dataclasses.replace(one, **{name: DEFAULTS[name] for name in for_some - names}))
        for (label, one), names in zip(resolved, read, strict=True)
    ]
