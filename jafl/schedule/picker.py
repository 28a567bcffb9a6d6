"""The choice of the clients that start next."""

import itertools
from collections.abc import Callable

import numpy as np

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


class WeightedPicker(Picker):
    """The same, but each draw takes an idle client with a probability in proportion to its weight."""

    TRIALS = 64  # of a uniform draw, before the weights of all idle clients are added up

    def __init__(self, num_clients: int, seed: int, shares: np.ndarray):
        super().__init__(num_clients, seed)
        self._chance: list[float] = (shares / shares.max()).tolist()

    def _take(self) -> int:
        """Removes one client from the idle ones. A uniform draw that is kept by chance has the right law."""
        idle, chance, uniform = self.idle, self._chance, self._uniform
        for _ in range(self.TRIALS):
            place = int(uniform() * len(idle))
            if uniform() < chance[idle[place]]:
                break
        else:  # all that are idle are rarely drawn
            up_to = np.cumsum([chance[client] for client in idle])
            place = min(int(np.searchsorted(up_to, uniform() * up_to[-1], side="right")), len(idle) - 1)
        picked = idle[place]
        idle[place] = idle[-1]
        idle.pop()
        return picked

    def draw(self, count: int) -> list[int]:
        """See ``Picker``."""
        return sorted(self._take() for _ in range(min(count, len(self.idle))))

    def draw_one(self) -> int:
        """See ``Picker``."""
        return self._take()

    def swap(self, client: int) -> int:
        """See ``Picker``."""
        self.idle.append(client)
        return self._take()
