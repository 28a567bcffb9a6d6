"""A rule with differential privacy, from settings."""

from typing import Any

from jafl.base.errors import SettingError, require, seed_number
from jafl.config import calls
from jafl.config.settings import Settings
from jafl.privacy.private import private
from jafl.specifications import Specification


def make_private(rule: Specification, settings: Settings) -> Specification:
    """``rule``, of a resolved run that is private, with privacy.

    Raises:
      SettingError: for a number out of its range, or an algorithm that is not eligible; by the setting's name.
    """
    assert settings.privacy is not None
    decomposed = "0 where privacy is given: clipped updates are not linear in the gradients"
    require(settings.decompose_steps == 0, "decompose_steps", settings.decompose_steps, decomposed)
    arguments = calls.grammar("privacy").given(settings.privacy)
    noise = "given, or noise_multiplier in its place, how much noise there is"
    given = arguments["epsilon"] is not None or arguments["noise_multiplier"] is not None
    require(given, "privacy.epsilon", None, noise)
    arguments["noise_seed"] = _noise_seed(arguments.get("noise_seed"), settings)
    try:
        return private(rule, **arguments, data_in_schedule=_data_in_schedule(settings))
    except SettingError as error:
        raise in_private_settings(error, settings) from None


def _noise_seed(noise_seed: int | None, settings: Settings) -> int | None:
    """A number below 2^64 for each pair of noise seed and run's seed: runs with other seeds have other noise."""
    if noise_seed is None:
        return None
    return (seed_number("privacy.noise_seed", noise_seed) << 32) + int(settings.seed)


def in_private_settings(error: SettingError, settings: Settings) -> SettingError:
    """A refusal of an argument of ``private`` as one of the setting that fills it; any other one as it is."""
    if settings.privacy is None:
        return error
    if error.setting == "rule":
        return error.within(f"algorithm is {settings.algorithm_name}, with privacy", "algorithm")
    is_own: Any = calls.grammar("privacy").has(settings.privacy, error.setting)
    return error.of(f"privacy.{error.setting}") if is_own else error


def _data_in_schedule(settings: Settings) -> tuple[str, ...]:
    """What the schedule of these settings is made from that clients hold."""
    facts = []
    laws = set(calls.grammar("delay").names(settings.delay))
    if "proportional_to_examples" in laws:
        facts.append("how many examples each client holds")
    if settings.richest_last and "groups" in laws:
        facts.append(f"which clients hold the largest shares of the labels {settings.richest_last}")
    return tuple(facts)
