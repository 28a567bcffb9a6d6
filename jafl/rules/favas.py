"""FAVAS: the mean of the server's model and of the polled clients', by their work (Leconte et al., ICASSP 2024)."""

import jax
import numpy as np

from jafl.base.errors import SettingError, choose
from jafl.records import Columns, EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def favas(form: str = "expected") -> Rule:
    """FAVAS (FAVANO): each client that is polled counts by the local steps that are expected of it, not those made.

    w <- (w + sum_i u_i) / (s + 1) over the s clients that are polled, with u_i = x_i + update_i / alpha_i and x_i the
    model from which client i has trained (Leconte et al., ICASSP 2024). alpha_i makes the expectation of
    update_i / alpha_i that of one local step, whatever the client's speed: "expected", the paper's deterministic
    form, has the client's mean number of local steps; "made", its stochastic form, the trip's own number times the
    share of the client's trips that have any. A trip without local steps gives u_i = x_i. The pseudo-gradient is w
    minus that mean, so use plain SGD with rate 1 at the server. The schedule is ``jafl.polled``. Mean and share are
    those over all trips of the schedule, which is a reading: the paper takes them as known.

    Where all clients are polled and make alpha steps, w is the mean of N + 1 models, the server's one of them: this
    is not FedAvg.

    Reports ``weight`` per trip: 1 / ((s + 1) alpha_i), 0 for one without local steps.

    Args:
      form: "expected" or "made".

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown form, when the rule is built; for a schedule without polls, when the run starts.
    """
    factors = choose("form", form, {"expected": _by_expectation, "made": _by_work})

    def begin(state, params):
        return params, accumulate.zeros(params), accumulate.number(0)

    def fold(buffer, arrival):
        params, total, polled = buffer
        factor = arrival.columns["factor"]

        def away(total, w, x, update):
            """Zero, whatever rounding does, where the client has brought back the server's model."""
            return total + (w - x) - factor.astype(w.dtype) * update

        total = jax.tree.map(away, total, params, arrival.start, arrival.update)
        return (params, total, polled + 1), {"weight": factor}

    def finish(buffer, params):
        _, total, polled = buffer
        scale = 1 / (polled + 1)
        return accumulate.scaled(scale, total), (), {"weight_scale": scale}, True

    def columns(schedule: EventSchedule) -> Columns:
        steps = schedule.local_steps
        steps = np.ones(schedule.num_trips, np.int32) if steps is None else steps
        return {"factor": np.where(steps > 0, 1 / np.maximum(factors(schedule, steps), 1e-300), 0.0)}

    return Rule(
        init=lambda params, num_clients: (),
        begin=begin,
        fold=fold,
        finish=finish,
        columns=columns,
        requirements=Requirements(needs_start=True, empty_steps=True),
        check_schedule=_check,
    )


def _means(schedule: EventSchedule, values: np.ndarray) -> np.ndarray:
    """[J] float64: the mean of ``values`` [J] over all trips of the trip's client."""
    client, clients = schedule.client, schedule.num_clients
    trips = np.bincount(client, minlength=clients)
    means: np.ndarray = np.bincount(client, values, clients)[client] / trips[client]
    return means


def _by_expectation(schedule: EventSchedule, steps: np.ndarray) -> np.ndarray:
    return _means(schedule, steps)


def _by_work(schedule: EventSchedule, steps: np.ndarray) -> np.ndarray:
    return steps * _means(schedule, steps > 0)


def _check(schedule: EventSchedule) -> None:
    """Raises SettingError unless trips last from poll to poll, and have numbers of local steps."""
    order = np.argsort(schedule.client, kind="stable")
    first = np.diff(schedule.client[order], prepend=-1) > 0
    since = np.where(first, 0, np.roll(schedule.step[order] + 1, 1))
    from_poll_to_poll = np.array_equal(schedule.download_version[order], since)
    if schedule.local_steps is None or not from_poll_to_poll:
        raise SettingError(
            "favas needs clients that train from poll to poll, and numbers of their local steps. Make the schedule "
            "by polled(cohort_size=..., interval=..., ...), on the command line --protocol=polled, with the "
            "client work's local_steps='scheduled'.",
            setting="protocol",
        )
