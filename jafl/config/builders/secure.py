"""A rule under secure aggregation, from settings."""

from jafl.base.errors import SettingError, require
from jafl.config import calls
from jafl.config.settings import Settings
from jafl.privacy.secure import secure
from jafl.specifications import Specification


def make_secure(rule: Specification, settings: Settings) -> Specification:
    """``rule``, of a resolved run with secure aggregation, under it.

    Raises:
      SettingError: for a number out of its range, or an algorithm that is not eligible; by the setting's name.
    """
    assert settings.secure_aggregation is not None
    decomposed = "0 where secure_aggregation is given: rounded updates are not linear in the gradients"
    require(settings.decompose_steps == 0, "decompose_steps", settings.decompose_steps, decomposed)
    arguments = calls.grammar("secure_aggregation").given(settings.secure_aggregation)
    own, others = arguments.get("clip_norm"), settings.argument("privacy.clip_norm")
    allowed = (
        "given where there is no privacy" if others is None else f"left out, or that of privacy, {others}"
    )
    fits = own is not None if others is None else own in (None, others)
    require(fits, "secure_aggregation.clip_norm", own, allowed)
    try:
        return secure(rule, **{**arguments, "clip_norm": own or others}, seed=int(settings.seed))
    except SettingError as error:
        raise in_secure_settings(error, settings) from None


def in_secure_settings(error: SettingError, settings: Settings) -> SettingError:
    """A refusal of an argument of ``secure`` as one of the setting that fills it; any other one as it is."""
    if settings.secure_aggregation is None:
        return error
    if error.setting == "rule":
        return error.within(f"algorithm is {settings.algorithm_name}, with secure_aggregation", "algorithm")
    is_own = calls.grammar("secure_aggregation").has(settings.secure_aggregation, error.setting)
    return error.of(f"secure_aggregation.{error.setting}") if is_own else error
