"""How often clients may take part, and how soon again: what private federated learning asks of a schedule."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Set

from jafl.base.errors import whole_number


class Limits:
    """Keeps clients from starting who have made all their trips, or whose last one is too few server steps ago.

    A trip counts from the moment at which the server takes it into its buffer. One that is thrown away does not: the
    model never depends on it. smallest_gap: least difference of the numbers of the steps that apply a client's
    trips.
    """

    def __init__(self, num_clients: int, most_trips: int | None, smallest_gap: int):
        self.most_trips = float("inf") if most_trips is None else most_trips
        self.smallest_gap = smallest_gap
        self.taken = array("i", bytes(4 * num_clients))  # trips of each client
        self._rests_until = array("i", bytes(4 * num_clients))  # the version from which each client may start
        self._resting: defaultdict[int, list[int]] = defaultdict(
            list
        )  # {version: who may start from then on}

    def take(self, client: int, step: int) -> None:
        """Notes that a trip of ``client`` is in the buffer that server step ``step`` will apply."""
        self.taken[client] += 1
        self._rests_until[client] = step + self.smallest_gap

    def may_start(self, clients: Iterable[int], version: int) -> list[int]:
        """Those of ``clients``, who are idle, that may start from ``version``; others rest, or are done."""
        free = []
        for client in clients:
            if self.taken[client] < self.most_trips:
                if self._rests_until[client] <= version:
                    free.append(client)
                else:
                    self._resting[self._rests_until[client]].append(client)
        return free

    def rested(self, version: int) -> list[int]:
        """Those that may start from ``version`` on, and not from the one before. Ask for every version in turn."""
        return self._resting.pop(version, [])

    def leave(self, leavers: Set[int]) -> None:
        """``leavers`` never start again."""
        for version, clients in self._resting.items():
            self._resting[version] = [client for client in clients if client not in leavers]

    @property
    def resting(self) -> int:
        """The clients that will be able to start again, after further server steps."""
        return sum(map(len, self._resting.values()))

    def done(self, gone: Set[int] = frozenset()) -> int:
        """The clients that have made all their trips, those that are ``gone`` left out."""
        return sum(count >= self.most_trips and who not in gone for who, count in enumerate(self.taken))


def check_limits(most_trips: int | None, smallest_gap: int) -> None:
    """Raises SettingError unless both limits are whole numbers in their range."""
    if most_trips is not None:
        whole_number("most_trips", most_trips, 1)
    whole_number("smallest_gap", smallest_gap, 0)


def make_limits(num_clients: int, most_trips: int | None, smallest_gap: int) -> Limits | None:
    """The limits; None where there are none."""
    return Limits(num_clients, most_trips, smallest_gap) if most_trips is not None or smallest_gap else None
