"""How an experiment's examples are divided: what its analysis states as the correction of its intervals."""

from collections.abc import Mapping, Sequence

from experiments.harness.declare.declarations import Scale
from jafl.config import grid
from jafl.config.grid import Override
from jafl.config.settings import Settings


def corrections(scale: Scale, settings: Settings, budget: Sequence[Override] = ()) -> dict[str, float]:
    """{condition: test examples over training examples}; empty for an experiment from before the protocol.

    Args:
      scale: of the experiment.
      settings: the common ones.
      budget: a typed budget, as overrides that apply last.
    """
    if scale.analysis is None:
        return {}
    from jafl.config.data_cache import DataCache

    loaded, shares = DataCache(), {}
    for condition in grid.product(scale.conditions):
        sources = [loaded.source(arm) for arm in _arms(scale, settings, budget, condition)]
        shares[grid.folder(condition)] = max(len(source.test_y) / len(source.y) for source in sources)
    return shares


def shared_examples(scale: Scale, settings: Settings, budget: Sequence[Override] = ()) -> int:
    """How many test examples of the first seed are examples of the second; 0 where the analysis does not need it.

    The arguments are those of ``corrections``.
    """
    if scale.analysis is None or scale.analysis.correction or len(scale.seeds) < 2:
        return 0
    from jafl.config.data_cache import DataCache

    condition = next(iter(grid.product(scale.conditions)))
    arm = _arms(scale, settings, budget, condition)[0]
    one, other = (DataCache().read(arm.changed({"seed": str(seed)})) for seed in scale.seeds[:2])
    there = {each.tobytes() for each in (*other.x, *other.test_x)}
    return sum(each.tobytes() in there for each in one.test_x)


def _arms(
    scale: Scale, settings: Settings, budget: Sequence[Override], condition: Mapping[str, object]
) -> list[Settings]:
    """The arms' settings, with all test examples: evaluating on fewer does not make seeds share less."""
    arms = grid.under(settings, scale.arms, condition, [*scale.overrides, *budget])
    return [arm.changed({"split.evaluation_examples": None}) for arm in arms.values()]
