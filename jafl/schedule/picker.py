"""The choice of the clients that start next."""

import itertools
from collections.abc import Callable

from jafl.schedule.draws import SELECTION, generator


class Picker:
    """The idle clients, and uniform draws among them, each in constant time."""

    def __init__(self, num_clients: int, seed: int):
        self.idle = list(range(num_clients))
        random = generator(seed, SELECTION)
        blocks = iter(lambda: random.random(4096).tolist(), None)
        self._uniform: Callable[[], float] = itertools.chain.from_iterable(blocks).__next__

    def draw(self, count: int) -> list[int]:
        """Removes ``count`` clients, or all there are, from the idle ones; uniform; in client order."""
        idle, picked = self.idle, []
        for _ in range(min(count, len(idle))):
            place = int(self._uniform() * len(idle))
            picked.append(idle[place])
            idle[place] = idle[-1]
            idle.pop()
        return sorted(picked) if count > 1 else picked

    def draw_one(self) -> int:
        """Removes one client from the idle ones, of whom there must be one: as ``draw(1)``, but quicker."""
        idle = self.idle
        place = int(self._uniform() * len(idle))
        picked = idle[place]
        idle[place] = idle[-1]
        idle.pop()
        return picked

    def swap(self, client: int) -> int:
        """Takes ``client`` back and draws one: what ``idle.append(client)`` and ``draw(1)`` do, but quicker."""
        idle = self.idle
        place = int(self._uniform() * (len(idle) + 1))
        if place == len(idle):
            return client
        picked = idle[place]
        idle[place] = client
        return picked
