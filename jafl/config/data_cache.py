"""Data sets and federations that were made before, for runs of the same data."""

import dataclasses
import json
from collections.abc import Sequence

from jafl.config.builders import make_federation, make_source
from jafl.config.builders.data import data_seed
from jafl.config.settings import OF_FEDERATION, Settings, of_source
from jafl.data import Federation, Source


class DataCache:
    """Data sets and federations that were made before, for runs of the same data.

    Keeps the federations of the last ``FEDERATIONS`` seeds and partitions, and of one data set at a time.
    """

    FEDERATIONS = 16

    def __init__(self) -> None:
        self._source: tuple[str, Source] | None = None
        self._federations: dict[tuple[str, int], Federation] = {}

    def source(self, settings: Settings) -> Source:
        """The data set of these settings."""
        what = _written(settings, of_source(settings.dataset))
        if self._source is None or self._source[0] != what:
            self._federations.clear()
            self._source = what, make_source(settings)
        return self._source[1]

    def federation(self, settings: Settings, seed: int) -> Federation:
        """The clients of these settings, filled in from the data set (``filled_in``)."""
        source = self.source(settings)
        key = _written(settings, OF_FEDERATION), seed
        if key not in self._federations:
            if len(self._federations) >= self.FEDERATIONS:
                del self._federations[next(iter(self._federations))]
            self._federations[key] = make_federation(settings, source, seed)
        return self._federations[key]


def _written(settings: Settings, names: Sequence[str]) -> str:
    decisive = dataclasses.replace(settings, data_seed=data_seed(settings))
    return json.dumps({name: getattr(decisive, name) for name in names})
