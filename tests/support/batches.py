"""For tests of runs that train in one program."""

from jafl.runs.batching import as_runs, batches_of
from jafl.simulation.simulate_many import simulate_many


def simulate_in_batches(experiments):
    """Trains all in the batches of ``batches_of``; for each its history, or the ``DivergenceError`` that ended it."""
    outcomes = {}
    for numbers in batches_of(experiments):
        together = [experiments[number] for number in numbers]
        ended = simulate_many(as_runs(together), form=together[0].settings.plan_form)
        outcomes |= dict(zip(numbers, ended, strict=True))
    return [outcomes[number] for number in range(len(experiments))]
