"""A rule with differential privacy, from settings."""

from jafl.base.errors import SettingError, require, seed_number
from jafl.config.calls import grammar
from jafl.config.settings import DECLARED, DEFAULTS, Settings
from jafl.privacy.mechanisms import TREES
from jafl.privacy.private import private
from jafl.specifications import Specification

# {argument of ``private``: the setting that fills it}, where the two have other names.
SETTING_OF = {"rule": "algorithm", "restarts": "dp_restarts", "bands": "dp_bands"}


# Settings of a private run alone; clip_norm is also one of secure aggregation.
PRIVATE_ALONE = tuple(
    name
    for name, declared in DECLARED.items()
    if declared.group == "privacy" and name != "clip_norm" and not name.startswith("secure_")
)


def is_private(settings: Settings) -> bool:
    """Whether a run is differentially private: it clips, and does so not for secure aggregation alone."""
    asked = any(getattr(settings, name) != DEFAULTS[name] for name in PRIVATE_ALONE)
    return settings.clip_norm is not None and (asked or settings.secure_fraction_bits is None)


def make_private(rule: Specification, settings: Settings) -> Specification:
    """``rule``, of a resolved run whose ``clip_norm`` is given, with privacy.

    Raises:
      SettingError: for a number out of its range, or an algorithm that is not eligible; by the setting's name.
    """
    for name in ("delta", "epsilon" if settings.noise_multiplier is None else "noise_multiplier"):
        remedy = "Train without privacy by leaving clip_norm out."
        if name == "epsilon":
            remedy = f"Or give noise_multiplier, how much noise there is. {remedy}"
        require(getattr(settings, name) is not None, name, None, "given where clip_norm is", remedy)
    decomposed = "0 where clip_norm is given: clipped updates are not linear in the gradients"
    require(settings.decompose_steps == 0, "decompose_steps", settings.decompose_steps, decomposed)
    assert settings.clip_norm is not None and settings.delta is not None
    try:
        return private(
            rule,
            clip_norm=settings.clip_norm,
            delta=settings.delta,
            noise_multiplier=settings.noise_multiplier,
            epsilon=settings.epsilon,
            mechanism=settings.mechanism,
            # What another mechanism reads is refused as a setting that no run reads.
            restarts=settings.dp_restarts if settings.mechanism in TREES else 0,
            bands=settings.dp_bands if settings.mechanism == "banded_toeplitz" else None,
            epsilon_reading=settings.epsilon_reading,
            noise_seed=_noise_seed(settings),
            data_in_schedule=_data_in_schedule(settings),
        )
    except SettingError as error:
        raise in_settings(error, settings) from None


def _noise_seed(settings: Settings) -> int | None:
    """A number below 2^64 for each pair of ``noise_seed`` and ``seed``: runs with other seeds have other noise."""
    if settings.noise_seed is None:
        return None
    return (seed_number("noise_seed", settings.noise_seed) << 32) + int(settings.seed)


def in_settings(error: SettingError, settings: Settings) -> SettingError:
    """A refusal of an argument of ``private`` as one of the setting that fills it."""
    name = SETTING_OF.get(error.setting, error.setting)
    if name == "algorithm":
        return error.within(f"algorithm is {settings.algorithm_name}, with clip_norm", "algorithm")
    return error.of(name) if name != error.setting else error


def _data_in_schedule(settings: Settings) -> tuple[str, ...]:
    """What the schedule of these settings is made from that clients hold."""
    facts = []
    laws = set(grammar("delay").names(settings.delay))
    if "proportional_to_examples" in laws:
        facts.append("how many examples each client holds")
    if settings.richest_last and "groups" in laws:
        facts.append(f"which clients hold the largest shares of the labels {settings.richest_last}")
    return tuple(facts)
