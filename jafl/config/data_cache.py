"""Data sets, federations and initial models that were made before, for runs of the same data."""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from jafl import data
from jafl.base import stopwatch
from jafl.config.builders.data import make_federation, make_source, run_split, with_data
from jafl.config.builders.training import make_model
from jafl.config.settings import GROUP, Settings
from jafl.data import Federation, Source
from jafl.models import Model

# What decides, with the run's seed, which examples there are and who holds them.
OF_FEDERATION = (
    *(name for name, group in GROUP.items() if group in ("data", "partition")),
    "float_type",
)


class DataCache:
    """Data sets and federations that were made before, for runs of the same data.

    Keeps the federations of the last ``FEDERATIONS`` seeds and partitions, and of the last model its initial
    parameters. Of data sets it keeps the last ``SOURCES``, as long as they take ``BYTES_OF_SOURCES``, and one in any
    case: several are in use at once where each seed has its own split (``split.resample``).

    Attributes:
      resolved: settings that were given, without their seeds, and what ``resolution.resolve`` has made of them.
    """

    FEDERATIONS, SOURCES = 16, 64
    BYTES_OF_SOURCES = 2**31  # twenty splits of Fashion-MNIST take half of it

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._federations: dict[tuple[str, str, int], Federation] = {}
        self._initial: tuple[Any, dict[str, Any]] = None, {}
        self.resolved: dict[tuple[Any, ...], Settings] = {}

    def source(self, settings: Settings) -> Source:
        """The data set of these settings; where each seed has its own split, that of the first seed."""
        what = _written(settings, source_settings(settings.dataset_name))
        if what not in self._sources:
            with stopwatch.part("data"):
                source = self.read(settings)
            self._make_room(_bytes(source))
            self._sources[what] = source
        return self._sources[what]

    def read(self, settings: Settings) -> Source:
        """The data set of these settings, read again."""
        return make_source(settings)

    def model(self, settings: Settings, source: Source) -> Model:
        """The model of these settings, without what it does to the data set's examples."""
        return make_model(settings, source)

    def _make_room(self, needed: int) -> None:
        """Forgets the data sets that have been here the longest, and all federations with them."""
        while self._sources and (
            len(self._sources) >= self.SOURCES
            or needed + sum(map(_bytes, self._sources.values())) > self.BYTES_OF_SOURCES
        ):
            forgotten = next(iter(self._sources))
            del self._sources[forgotten]
            for key in [key for key in self._federations if key[0] == forgotten]:
                del self._federations[key]

    def federation(self, settings: Settings, seed: int) -> Federation:
        """The clients of these settings, filled in from the data set (``filled_in``)."""
        source = self.source(settings)
        source_key = _written(settings, source_settings(settings.dataset_name))
        key = source_key, _written(settings, OF_FEDERATION), seed
        if key not in self._federations:
            if len(self._federations) >= self.FEDERATIONS:
                del self._federations[next(iter(self._federations))]
            with stopwatch.part("data"):
                self._federations[key] = make_federation(settings, source, seed)
        return self._federations[key]

    def initial(self, what: str, model: Model, settings: Settings, source: Source, make: Callable) -> Any:
        """What ``make`` returns, or returned before for the same model and seed.

        Drawing parameters takes a second for each run of a comparison, and all its runs start from the same ones.

        what: a name for it: "shapes" or "parameters".
        """
        if model.frozen is not None or model.initial is not None:  # models are equal whatever these hold
            return make()
        key = model, settings.seed, settings.float_type, source.x.shape[1:], source.x.dtype
        if self._initial[0] != key:
            self._initial = key, {}
        values = self._initial[1]
        if what not in values:
            values[what] = make()
        return values[what]


def source_settings(dataset: str) -> tuple[str, ...]:
    """The settings that decide which examples a data set has."""
    source = data.SOURCES.get(dataset)
    has_clients = source is None or "num_clients" in inspect.signature(source).parameters
    own = (name for name, group in GROUP.items() if group == "data")
    return (*own, "float_type", *["num_clients"] * has_clients)


def _written(settings: Settings, names: Sequence[str]) -> str:
    decisive = with_data(settings).changed({"split.seed": None, "split.resample": False})
    return json.dumps([run_split(settings), {name: getattr(decisive, name) for name in names}])


def _bytes(source: Source) -> int:
    """What a data set takes in memory; memory-mapped files count, too, for their pages are read."""
    return sum(value.nbytes for value in vars(source).values() if hasattr(value, "nbytes"))
