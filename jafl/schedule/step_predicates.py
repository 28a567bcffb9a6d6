"""When the server steps, where a number of trips does not decide it: Malenia SGD's mean, Ringleader ASGD's rounds."""

from array import array
from collections.abc import Collection
from fractions import Fraction

STEP_WHEN = ("buffer_full", "harmonic_mean", "each_client_once_a_round")


class HarmonicMean:
    """How many trips of each client the buffer holds, and whether these are enough for a step.

    They are if (N^-1 sum_i 1 / B_i)^-1 >= S / N, B_i the trips of client i (Tyurin and Richtárik, NeurIPS 2023): the
    mean of the N clients' mean gradients then varies as little as that of S gradients of one client. The sum is
    exact, for with equal clients both sides are often equal.
    """

    def __init__(self, num_clients: int, wanted: int):
        self.num_clients, self.wanted = num_clients, wanted
        self.fewest = max(num_clients, wanted)  # no fewer trips are ever enough
        self.step()

    def step(self) -> None:
        """The server steps; the buffer is empty."""
        self._counts = array("i", bytes(4 * self.num_clients))
        self._unheard, self._sum = self.num_clients, Fraction(0)  # sum: over the clients that are heard

    def take(self, client: int) -> None:
        """A trip of ``client`` goes into the buffer."""
        before = self._counts[client]
        self._counts[client] = before + 1
        if before:
            self._sum -= Fraction(1, before * (before + 1))  # 1 / (b + 1) in the place of 1 / b
        else:
            self._unheard -= 1
            self._sum += 1

    def is_reached(self) -> bool:
        """Whether the server may step."""
        return not self._unheard and self.num_clients**2 >= self.wanted * self._sum

    def waits_for(self, lost: Collection[int]) -> list[int]:
        """Those of the clients that bring no trip any more without whom there is no step; none if there may be."""
        return sorted(client for client in lost if not self._counts[client])


class RoundsOfSingleSteps:
    """Ringleader ASGD's rounds of N steps, one by each client (Maranjyan and Richtárik, ICLR 2026).

    First a round waits until it has a trip of every client; who brings the last one makes the first step. Then each
    client that has not made its step in this round makes it when it arrives. Trips of those that have count for the
    next round.
    """

    fewest = 1

    def __init__(self, num_clients: int):
        self.num_clients = num_clients
        self._current: set[int] = set()  # clients with a trip for this round
        self._next: set[int] = set()  # and for the next one
        self._stepped: set[int] = set()  # who has made its step in this round
        self._arrived = -1  # whose trip came last

    def take(self, client: int) -> None:
        """A trip of ``client`` goes into the buffer."""
        self._arrived = client
        (self._next if client in self._stepped else self._current).add(client)

    def is_reached(self) -> bool:
        """Whether the server may step: by the trip that came last."""
        return len(self._current) == self.num_clients and self._arrived not in self._stepped

    def step(self) -> None:
        """The server steps; the step is that of the client whose trip came last."""
        self._stepped.add(self._arrived)
        if len(self._stepped) == self.num_clients:
            self._current, self._next, self._stepped = self._next, set(), set()

    def waits_for(self, lost: Collection[int]) -> list[int]:
        """Those of the clients that bring no trip any more without whom there is no step; none if there may be."""
        if len(self._current) < self.num_clients:
            return sorted(set(lost) - self._current)
        left = set(range(self.num_clients)) - self._stepped
        return sorted(left) if left <= set(lost) else []
