"""Data sets and models to plan with: those that are here, and stand-ins of the published shapes for the others."""

import pathlib
from collections.abc import Callable
from typing import Any

from experiments.harness.declare.assumed import BASE_SIZES, NAMES, assumed_model, assumed_source
from jafl.base.errors import SettingError
from jafl.config import calls
from jafl.config.builders.data import make_source
from jafl.config.builders.training import make_model
from jafl.config.data_cache import DataCache
from jafl.config.settings import Settings
from jafl.data import Source
from jafl.models import Model


class AssumingCache(DataCache):
    """A ``DataCache`` whose data sets and models may be assumed, and whose initial parameters are shapes.

    Attributes:
      assumed: {what is not here: why, in a sentence}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.assumed: dict[str, str] = {}

    def read(self, settings: Settings) -> Source:
        """The data set, or its stand-in; SettingError where neither can be."""
        try:
            return make_source(settings)
        except SettingError as error:
            if settings.dataset_name not in NAMES:
                raise
            source = make_source(settings, assumed_source)  # refuses what is wrong with the settings
            self.assumed.setdefault(settings.dataset_name, str(error))
            return source

    def model(self, settings: Settings, source: Source) -> Model:
        """The model, or the published size of one whose folder is not here."""
        grammar = calls.grammar("model")
        name = grammar.read(settings.model).name
        folder = grammar.value(settings.model, "model_dir") if name in BASE_SIZES else ""
        if name in BASE_SIZES and not (folder and pathlib.Path(folder).is_dir()):
            model = assumed_model(name, source.num_classes, grammar.value(settings.model, "fine_tune"))
            self.assumed.setdefault(name, f"model_dir is {folder!r}, which is no directory here.")
            return model
        return make_model(settings, source)

    def initial(
        self, what: str, model: Model, settings: Settings, source: Source, make: Callable[[], Any]
    ) -> Any:
        """The shapes of the parameters, whatever is asked for: they were asked for first."""
        return super().initial("shapes", model, settings, source, make)
