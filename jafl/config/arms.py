"""Arms: what a sweep compares, each under a label of its own, in settings that differ from the common ones.

An arm is ``{label: settings}``, as in ``{"FedBuff, K = 10": {"algorithm": "fedbuff", "buffer_size": 10}}``. Where
several algorithms are compared, each is an arm that is called like it. The run of an arm and a seed lies in a folder
``<label>-seed<seed>``, odd characters of the label as in a web address.
"""

import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jafl.base.errors import SettingError, require
from jafl.config import calls
from jafl.config.grid import LONGEST_NAME
from jafl.config.settings import Settings
from jafl.config.values import items

Arms = Mapping[str, Mapping[str, Any]]


class Override(NamedTuple):
    """Settings that hold only where ``condition`` does, and, unless ``label`` is None, only for that arm."""

    condition: Mapping[str, Any]
    label: str | None
    settings: Mapping[str, Any]

    def holds(self, condition: Mapping[str, Any], label: str) -> bool:
        """Whether it is for the arm ``label`` under ``condition``."""
        is_for = self.label in (None, label)
        return is_for and all(
            name in condition and condition[name] == value for name, value in self.condition.items()
        )


def algorithm_arms(settings: Settings) -> dict[str, dict[str, Any]]:
    """An arm for each algorithm that the settings list; raises SettingError if one is there twice.

    It is called like the algorithm; where several have one name, as its whole text.
    """
    texts = items("algorithm", settings.algorithm)
    require(len(set(texts)) == len(texts), "algorithm", settings.algorithm, "a list without repetitions")
    names = [calls.bare_name(calls.grammar("algorithm").read(text).name) for text in texts]
    labels = [name if names.count(name) == 1 else text for name, text in zip(names, texts, strict=True)]
    return {label: {"algorithm": text} for label, text in zip(labels, texts, strict=True)}


def under(
    settings: Settings,
    arms: Arms,
    condition: Mapping[str, Any],
    overrides: Sequence[Override] = (),
    last: Mapping[str, Any] | None = None,
) -> dict[str, Settings]:
    """{label: the arm's settings} under a condition.

    Each takes the place of what comes before: ``settings``, the condition, the arm's own, the overrides in their
    order, ``last``.
    """
    return {
        label: settings.changed(
            condition,
            own,
            *(override.settings for override in overrides if override.holds(condition, label)),
            last or {},
        )
        for label, own in arms.items()
    }


def check(arms: Arms, overrides: Sequence[Override] = ()) -> None:
    """Raises SettingError for no arms, an odd label, an arm without one algorithm, or an override of no arm."""
    require(arms, "arms", dict(arms), "{label: settings}, at least one")
    for label, own in arms.items():
        require(label and label == label.strip(), "a label of arms", label, "text without spaces around it")
        fits = len(folder(label, 0).encode()) < LONGEST_NAME - len(str(2**32))
        require(fits, "a label of arms", label, f"short enough for a folder of at most {LONGEST_NAME} bytes")
        if "seed" in own:
            message = f"The arm {label!r} sets seed, which is the same for all arms."
            raise SettingError(message, setting="seed")
        algorithm = own.get("algorithm", "")
        is_one = algorithm and len(items("algorithm", algorithm)) == 1
        require(is_one, f"algorithm of the arm {label!r}", algorithm, "one algorithm")
    for override in overrides:
        known = override.label is None or override.label in arms
        require(known, "an arm of overrides", override.label, f"one of {', '.join(arms)}")


def folder(label: str, seed: int | str) -> str:
    """The name of the folder of an arm's run."""
    return f"{urllib.parse.quote(label, safe=' ,+:@=')}-seed{seed}"
