"""When Malenia SGD's server steps: once the harmonic mean of the clients' numbers of trips is large enough."""

from array import array
from fractions import Fraction


class HarmonicMean:
    """How many trips of each client the buffer holds, and whether these are enough for a step.

    They are if (N^-1 sum_i 1 / B_i)^-1 >= S / N, B_i the trips of client i (Tyurin and Richtarik, NeurIPS 2023): the
    mean of the N clients' mean gradients then varies as little as that of S gradients of one client. The sum is
    exact, for with equal clients both sides are often equal.
    """

    def __init__(self, num_clients: int, wanted: int):
        self.num_clients, self.wanted = num_clients, wanted
        self.clear()

    def clear(self) -> None:
        """The buffer is empty."""
        self.counts = array("i", bytes(4 * self.num_clients))
        self._unheard, self._sum = self.num_clients, Fraction(0)  # sum: over the clients that are heard

    def take(self, client: int) -> None:
        """A trip of ``client`` goes into the buffer."""
        before = self.counts[client]
        self.counts[client] = before + 1
        if before:
            self._sum -= Fraction(1, before * (before + 1))  # 1 / (b + 1) in the place of 1 / b
        else:
            self._unheard -= 1
            self._sum += 1

    def is_reached(self) -> bool:
        """Whether the server may step."""
        return not self._unheard and self.num_clients**2 >= self.wanted * self._sum
