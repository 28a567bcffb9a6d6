"""A rule with differential privacy, or under secure aggregation, from settings."""

from collections.abc import Callable
from typing import Any

from jafl.base.errors import SettingError, require, seed_number
from jafl.config import calls
from jafl.config.settings import Settings
from jafl.privacy.private import private
from jafl.privacy.secure import secure
from jafl.specifications import Specification


def protected(rule: Specification, settings: Settings) -> Specification:
    """``rule``, of a resolved run, under secure aggregation and with privacy, as far as the settings ask for them.

    Raises:
      SettingError: for a number out of its range, or an algorithm that is not eligible; by the setting's name.
    """
    if settings.secure_aggregation is not None:
        rule = _made("secure_aggregation", secure, rule, _secure_arguments(settings), settings)
    if settings.privacy is not None:
        rule = _made("privacy", private, rule, _private_arguments(settings), settings)
    return rule


def _made(
    setting: str,
    factory: Callable[..., Specification],
    rule: Specification,
    arguments: dict[str, Any],
    settings: Settings,
) -> Specification:
    count, what = settings.decompose_steps, "clipped" if setting == "privacy" else "rounded"
    allowed = f"0 where {setting} is given: {what} updates are not linear in the gradients"
    require(count == 0, "decompose_steps", count, allowed)
    try:
        return factory(rule, **arguments)
    except SettingError as error:
        raise in_settings(error, settings, setting) from None


def _secure_arguments(settings: Settings) -> dict[str, Any]:
    arguments = calls.grammar("secure_aggregation").given(str(settings.secure_aggregation))
    own, others = arguments.get("clip_norm"), settings.argument("privacy.clip_norm")
    allowed = (
        "given where there is no privacy" if others is None else f"left out, or that of privacy, {others}"
    )
    fits = own is not None if others is None else own in (None, others)
    require(fits, "secure_aggregation.clip_norm", own, allowed)
    return {**arguments, "clip_norm": own or others, "seed": int(settings.seed)}


def _private_arguments(settings: Settings) -> dict[str, Any]:
    arguments = calls.grammar("privacy").given(str(settings.privacy))
    given = arguments["epsilon"] is not None or arguments["noise_multiplier"] is not None
    allowed = "given, or noise_multiplier in its place, how much noise there is"
    require(given, "privacy.epsilon", None, allowed)
    if (own := arguments.get("noise_seed")) is not None:
        # A number below 2^64 for each pair of noise seed and run's seed: runs with other seeds have other noise.
        arguments["noise_seed"] = (seed_number("privacy.noise_seed", own) << 32) + int(settings.seed)
    return {**arguments, "data_in_schedule": _data_in_schedule(settings)}


def in_settings(error: SettingError, settings: Settings, *names: str) -> SettingError:
    """A refusal of an argument of ``private`` or ``secure`` under its setting's name; any other one as it is.

    names: the settings that it may be of, ``privacy`` and ``secure_aggregation``.
    """
    for setting in names:
        text = getattr(settings, setting)
        if text is not None and error.setting == "rule":
            return error.within(f"algorithm is {settings.algorithm_name}, with {setting}", "algorithm")
        if text is not None and calls.grammar(setting).has(text, error.setting):
            return error.of(f"{setting}.{error.setting}")
    return error


def _data_in_schedule(settings: Settings) -> tuple[str, ...]:
    """What the schedule of these settings is made from that clients hold."""
    facts = []
    laws = set(calls.grammar("delay").names(settings.delay))
    if "proportional_to_examples" in laws:
        facts.append("how many examples each client holds")
    if settings.richest_last and "groups" in laws:
        facts.append(f"which clients hold the largest shares of the labels {settings.richest_last}")
    return tuple(facts)
