"""FADAS: an adaptive server optimizer whose rate falls if the buffer is stale (Wang et al., ICML 2024)."""

import numpy as np

from jafl.base.errors import choose, require, whole_number
from jafl.records import EventSchedule, Rule
from jafl.rules import accumulate, staleness
from jafl.rules.fedbuff import fedbuff
from jafl.specifications import specification


@specification
def fadas(delay_form: str = "paper", threshold: int = 1, server_learning_rate: float = 0.001) -> Rule:
    """FADAS: the mean of K updates goes into AMSGrad at the server, whose rate falls when the buffer is stale.

    The direction is the plain mean (1/K) sum_i update_i; the optimizer's moments take in the whole mean, and its step
    is made with the rate eta_t: eta if the largest staleness tau_max in the buffer is at most the threshold tau_c,
    else min(eta, 1 / tau_max) (Wang, Wang, Lu and Chen, ICML 2024, algorithm 1). The optimizer is
    ``jafl.rules.server_optimizers.fedamsgrad``, which offers the paper's AMSGrad, that of the authors' release, and
    optax's: these are three different algorithms.

    The authors' release differs from the paper in three more places, which are not reproduced: all but one of the K
    restarted clients train from the model before the last step, yet count as if from the newest; updates are taken as
    the difference from the current model; the statistics of batch normalization are averaged over the buffer. Usual
    mistake: to divide by the root of v in place of its running maximum, which is FedAdam.

    Reports ``weight`` per trip; ``applied`` per step: eta_t / eta.

    Args:
      delay_form: "paper": eta_t = min(eta, 1 / tau_max) above the threshold, which changes nothing until tau_max
        exceeds 1 / eta; "release": eta_t = eta / tau_max there, as in the authors' release; "none": eta_t = eta
        always (plain FADAS).
      threshold: tau_c in server steps, at least 0.
      server_learning_rate: eta, read by "paper" only: give the same learning rate as to the server's optimizer.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Raises:
      SettingError: for an unknown form or a threshold below 0, when the rule is built; for a rate that is not above
        0, when the run starts.

    Examples:
      >>> jafl.rules.fadas("release")
      fadas(delay_form='release', threshold=1, server_learning_rate=0.001)
    """
    largest = choose("delay_form", delay_form, {"paper": True, "release": False, "none": None})
    whole_number("threshold", threshold, 0)
    mean = fedbuff(staleness.constant()).build()
    if largest is None:
        return mean

    def scales(schedule: EventSchedule) -> np.ndarray:
        """[J]: eta_t / eta at the first trip of each server step, 0 at the others: they add up to it."""
        rate = float(server_learning_rate) if largest else 1.0
        require(0 < rate < np.inf, "server_learning_rate", rate, "a finite number above 0")
        late = np.zeros(schedule.num_steps)
        np.maximum.at(late, schedule.step, schedule.staleness)
        scale = np.where(late <= threshold, 1.0, np.minimum(1.0, 1.0 / (rate * np.maximum(late, 1.0))))
        first = np.append(True, schedule.step[1:] != schedule.step[:-1])
        return np.where(first, scale[schedule.step], 0.0)

    def fold(buffer, arrival):
        folded, report = mean.fold(buffer[:2], arrival)
        return (*folded, buffer[2] + arrival.columns["step_scale"]), report

    def finish(buffer, params):
        direction, state, report, _ = mean.finish(buffer[:2], params)
        return direction, state, report, buffer[2]

    return mean._replace(
        begin=lambda state, params: (*mean.begin(state, params), accumulate.number(0)),
        fold=fold,
        finish=finish,
        columns=lambda schedule: {"step_scale": scales(schedule)},
    )
