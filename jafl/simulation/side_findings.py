"""What is said of a run beside whether its model learned: measurements, labels and single clients."""

import math
from typing import Any

import numpy as np

from jafl.engine.plan.run import Run
from jafl.records import History
from jafl.records.histories import EVALUATION_COLUMNS
from jafl.simulation.learning_measures import clients_labels, constant_loss, label_shares, trip_losses
from jafl.simulation.not_finite import bad_example
from jafl.specifications import as_specification

# Labels that no client has are named where so many test examples have them.
SHARE_OF_TEST = 0.01
# A client's own loss is judged by the last third of its trips, if it made so many; it must be above that of all
# clients at the start by this share, beyond chance. Of many clients some are unlucky: the probability that chance
# alone names any of a run's clients is at most the last number (Student's test, with Bonferroni's correction).
FEWEST_TRIPS_OF_A_CLIENT, RISEN, BY_CHANCE = 9, 0.2, 0.01
SHOWN = 5


def not_finite(run: Run, history: History) -> list[str]:
    """Sentences on what evaluations measured that was never finite, or a loss that no longer is."""
    rows = history.evaluations
    reports = {*EVALUATION_COLUMNS, *history.trip_reports, *history.step_reports}
    texts = []
    of_losses: set[str] = set()
    for name in rows[-1] if rows else ():
        values = [row.get(name) for row in rows]
        numbers = [value for value in values if isinstance(value, (int, float))]
        if name in reports or not numbers:
            continue
        bad = [not math.isfinite(value) for value in numbers]
        split = name.rpartition("_")[0] if not name.endswith("_loss") else name[: -len("_loss")]
        if all(bad):
            when = f"in any of its {len(bad)} evaluations" if len(bad) > 1 else "in its only evaluation"
        elif name.endswith("loss") and bad[-1]:
            last_good = max(place for place, one in enumerate(bad) if not one)
            when = f"since server step {rows[last_good + 1]['server_step']}"
        else:
            continue
        if split in of_losses:  # what is measured of the same outputs says no more
            continue
        reason = ""
        if name.endswith("_loss"):
            of_losses.add(split)
            reason = _why(run, split, run.params if bad[0] else history.params)
        texts.append(f"{name} was not finite {when}: it says nothing of the model.{reason}")
    return texts


def _why(run: Run, split: str, params: Any) -> str:
    """A sentence on the example of a split whose loss is not finite; "" if an evaluator of one's own measured it."""
    x, y = (getattr(run.federation, f"{split}_{part}", None) for part in "xy")
    # An evaluator of one's own may read other examples, whatever its name is.
    if run.evaluators is not None or x is None or y is None:
        return " See the evaluator, and the examples that it reads."
    model = as_specification(run.client_work).build().model
    bad = bad_example(model, params, x, y, np.arange(len(x)), gradients=False)
    return "" if bad is None else f" {bad.describe(f'{split} example {bad.row}')}"


def labels_that_clients_lack(run: Run, history: History | None) -> str:
    """A sentence on labels of test examples that no client holds; with a history, no client that took part; or ""."""
    shares, held = label_shares(run.federation.test_y), clients_labels(run)
    if shares is None or label_shares(held) is None or run.evaluators is not None:
        return ""
    who = "No client holds"
    lacking = sorted(set(shares) - set(np.unique(held).tolist()))
    if not lacking and history is not None:
        took_part = np.zeros(run.federation.num_clients, bool)
        took_part[run.schedule.client[: len(history.trip_reports["loss"])]] = True
        partition = run.federation.partition
        seen = np.asarray(run.federation.y)[partition.indices[np.repeat(took_part, partition.sizes)]]
        lacking = sorted(set(shares) - set(np.unique(seen).tolist()))
        who = f"None of the {int(took_part.sum())} clients that took part holds"
    share = sum(shares[label] for label in lacking)
    if share < SHARE_OF_TEST:
        return ""
    listed = ", ".join(map(str, lacking[:SHOWN])) + (", ..." if len(lacking) > SHOWN else "")
    return (
        f"{who} an example of the label{'s' * (len(lacking) > 1)} {listed}, which {100 * share:.3g} % of the test "
        "examples have: these cannot be learned in this federation. See its partition, or test on what clients have."
    )


def clients_whose_loss_rose(run: Run, history: History) -> str:
    """A sentence on single clients whose own loss rose while the model learned; "" if there are none."""
    # Only for runs that are judged: SciPy takes a while to load.
    from scipy.special import stdtrit

    losses = trip_losses(history)
    client = np.asarray(run.schedule.client[: len(losses)])
    # Trips from the initial model, and where these are few a fiftieth of all: one loss says little.
    begins = max(2, int(np.sum(run.schedule.download_version[: len(losses)] == 0)), len(losses) // 50)
    before = float(np.mean(losses[:begins]))
    least = max(constant_loss(run, clients_labels(run)) or 0.0, (1 + RISEN) * before)
    rises: list[tuple[int, float]] = []
    counts = np.bincount(client)
    of_clients = np.split(losses[np.argsort(client, kind="stable")], np.cumsum(counts)[:-1])
    judged = np.flatnonzero(counts >= FEWEST_TRIPS_OF_A_CLIENT)
    for number in judged:
        own = of_clients[number]
        last = own[-(len(own) // 3) :]
        error = math.sqrt(np.var(last, ddof=1) / len(last))
        if last.mean() > least and last.mean() - least > error * -stdtrit(
            len(last) - 1, BY_CHANCE / len(judged)
        ):
            rises.append((int(number), float(last.mean())))
    if not rises:
        return ""
    most, after = max(rises, key=lambda one: one[1])
    listed = ", ".join(str(one[0]) for one in rises[:SHOWN]) + (", ..." if len(rises) > SHOWN else "")
    return (
        f"The model learned, but not for all clients: the training loss of {len(rises)} of "
        f"{run.federation.num_clients} (numbers {listed}) is above that of all clients at the start, {before:.3g}; "
        f"most of client {most}, {after:.3g} in the last third of its trips. See whether their labels belong to "
        "their examples, and whether these are like the others'."
    )
