"""Who takes part in each round: so many clients drawn uniformly, with or without limits, or each one by itself."""

from collections.abc import Callable, Sequence

import numpy as np

from jafl.schedule.draws import SELECTION, generator
from jafl.schedule.limits import Limits
from jafl.schedule.picker import Picker
from jafl.schedule.starvation import too_few_for_a_round


def fixed_cohorts(num_clients: int, size: int, rounds: int, seed: int) -> np.ndarray:
    """[T, size] int32: the clients of each round, in client order; every set of so many is equally likely."""
    random = generator(seed, SELECTION)
    cohorts = np.empty((rounds, size), np.int32)
    for number in range(rounds):
        cohorts[number] = random.choice(num_clients, size, replace=False, shuffle=False)
    cohorts.sort(axis=1)
    return cohorts


def poisson_cohorts(
    num_clients: int, mean_size: int, rounds: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(client [S] int32, round [S] int32): each client takes part in each round with chance mean_size / num_clients.

    So the sizes of the cohorts are binomial, and given its size each cohort is uniform. In the order of rounds, then
    of clients.
    """
    random = generator(seed, SELECTION)
    sizes = random.binomial(num_clients, mean_size / num_clients, rounds)
    chosen = [np.sort(random.choice(num_clients, size, replace=False, shuffle=False)) for size in sizes]
    client = np.concatenate([np.empty(0, np.int32), *chosen]).astype(np.int32)
    return client, np.repeat(np.arange(rounds, dtype=np.int32), sizes)


def limited_cohorts(
    size: int,
    rounds: int,
    seed: int,
    limits: Limits,
    *,
    setting: str,
    applied: Callable[[Sequence[int]], Sequence[int]] | None = None,
    everybody_first: bool = False,
) -> np.ndarray:
    """[T, size], ``fixed_cohorts`` of the clients that may start; SettingError in a round with too few of them.

    limits: before the first round; only trips that are applied count. applied: the clients of a round, in client
    order -> those whose trips the server applies, called once per round; None: all. everybody_first: the first round
    is one of all clients, and not returned.
    """
    num_clients = len(limits.taken)
    picker = Picker(num_clients, seed)
    cohorts = np.empty((rounds - everybody_first, size), np.int32)
    for number in range(rounds):
        picker.idle += limits.rested(number)
        wanted = num_clients if everybody_first and number == 0 else size
        idle = len(picker.idle)
        if idle < wanted:
            raise too_few_for_a_round(
                number, rounds, setting=setting, started=wanted, idle=idle, limits=limits
            )
        clients = picker.draw(wanted)
        if number >= everybody_first:
            cohorts[number - everybody_first] = clients
        taken = applied(clients) if applied else clients
        for client in taken:
            limits.take(client, number)
        picker.idle += limits.may_start(taken, number + 1)
        if len(taken) < len(clients):
            picker.idle += sorted(set(clients).difference(taken))
    return cohorts
