"""For tests of runs that train in one program."""

from jafl.runs.grouping import as_runs, group_experiments
from jafl.simulation.simulate_many import simulate_many


def simulate_in_groups(experiments):
    """Trains all, in groups where that pays; for each its history, or the ``DivergenceError`` that ended it."""
    outcomes = {}
    for numbers in group_experiments(experiments):
        together = [experiments[number] for number in numbers]
        ended = simulate_many(as_runs(together), form=together[0].settings.plan_form)
        outcomes |= dict(zip(numbers, ended, strict=True))
    return [outcomes[number] for number in range(len(experiments))]
