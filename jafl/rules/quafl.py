"""QuAFL: polled clients mix the server's model into their own, and go on (Zakerinia et al., AISTATS 2024)."""

import numpy as np

from jafl.base.errors import SettingError, whole_number
from jafl.records import EventSchedule, Requirements, Rule
from jafl.rules import accumulate
from jafl.rules.favas import favas
from jafl.specifications import specification


@specification
def quafl(cohort_size: int = 5) -> Rule:
    """QuAFL: clients keep models of their own, which are mixed with the server's when they are polled.

    Client i keeps X_i, at first w_0. Polled, it hands over Y_i, which is X_i after its local steps since the last
    poll, gets the server's model w, and goes on from X_i <- (w + s Y_i) / (s + 1). The server makes w <- (w + sum_i
    Y_i) / (s + 1) over the s clients that are polled (Zakerinia et al., AISTATS 2024, algorithm 1; from general
    knowledge of the paper). Where all clients are polled, the sum of w and of all X_i changes by what local steps
    change alone. The pseudo-gradient is w minus the new model, so use plain SGD with rate 1 at the server.

    The schedule is ``jafl.polled(download="before_step")``: a client gets the model from before the step to which it
    contributes. Use it with ``jafl.client_work(..., correction="quafl", local_steps="scheduled")``, and for quantised
    models with ``compression=jafl.compression.qsgd(...)``. The paper quantises Y_i by a lattice relative to the
    receiver's model. Here what is quantised is Y_i minus the model that the client downloaded at its last poll, which
    is a reading; so is that the server's model is sent whole.

    Reports ``weight`` per trip: 1 / (s + 1).

    Args:
      cohort_size: s, how many clients are polled at a time, as in the schedule; 20 of 100 in the paper.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for a number below 1, when the rule is built; for a schedule without such polls, or with others at
        a time, when the run starts.
    """
    whole_number("cohort_size", cohort_size, 1)
    mean = favas().build()

    def fold(buffer, arrival):
        state, inner = buffer
        inner, report = mean.fold(inner, arrival._replace(columns={"factor": accumulate.number(1)}))
        return (state, inner), report

    def finish(buffer, params):
        state, inner = buffer
        direction, _, report, apply = mean.finish(inner, params)
        return direction, state, report, apply

    return Rule(
        init=lambda params, num_clients: accumulate.number(cohort_size),
        begin=lambda state, params: (state, mean.begin((), params)),
        fold=fold,
        finish=finish,
        requirements=Requirements(needs_start=True, buffer_size=cohort_size, correction="quafl"),
        broadcast=lambda state: {"cohort_size": state},
        check_schedule=_check,
    )


def _check(schedule: EventSchedule) -> None:
    """Raises SettingError unless trips last from poll to poll, and begin with the model from before the step."""
    order = np.argsort(schedule.client, kind="stable")
    first = np.diff(schedule.client[order], prepend=-1) > 0
    before = np.where(first, 0, np.roll(schedule.step[order], 1))
    if not np.array_equal(schedule.download_version[order], before):
        raise SettingError(
            "quafl needs clients that train from poll to poll, and get the model from before the step of their poll. "
            "Make the schedule by polled(download='before_step', cohort_size=..., interval=..., ...), on the "
            "command line --protocol=polled --protocol.download=before_step.",
            setting="protocol",
        )
