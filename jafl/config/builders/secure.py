"""A rule under secure aggregation, from settings."""

import re

from jafl.base.errors import SettingError, require
from jafl.config.settings import Settings
from jafl.privacy.secure import secure
from jafl.specifications import Specification

_BITS = re.compile(r"\b(fraction_bits|weight_bits)\b")


def make_secure(rule: Specification, settings: Settings) -> Specification:
    """``rule``, of a resolved run whose ``secure_fraction_bits`` are given, under secure aggregation.

    Raises:
      SettingError: for a number out of its range, or an algorithm that is not eligible; by the setting's name.
    """
    decomposed = "0 where secure_fraction_bits is given: rounded updates are not linear in the gradients"
    require(settings.decompose_steps == 0, "decompose_steps", settings.decompose_steps, decomposed)
    assert settings.clip_norm is not None and settings.secure_fraction_bits is not None
    try:
        return secure(
            rule,
            clip_norm=settings.clip_norm,
            fraction_bits=settings.secure_fraction_bits,
            weight_bits=settings.secure_weight_bits,
            seed=int(settings.seed),
        )
    except SettingError as error:
        if error.setting == "rule":
            place = f"algorithm is {settings.algorithm_name}, with secure_fraction_bits"
            raise error.within(place, "algorithm") from None
        raise in_secure_settings(error) from None


def in_secure_settings(error: SettingError) -> SettingError:
    """A refusal of bits by the settings' names; every other one as it is."""

    def named(text: str) -> str:
        return _BITS.sub(r"secure_\1", text)

    return SettingError(
        named(str(error)),
        setting=named(error.setting),
        value=error.value,
        allowed=named(error.allowed),
        remedy=named(error.remedy),
    )
