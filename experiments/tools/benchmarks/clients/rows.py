"""What the benchmark measures: its rows, and which of them a command asks for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jafl.base.errors import require, unknown_name, whole_number
from jafl.config.values import items

CLIENTS = (1_000, 10_000, 100_000)
ALGORITHMS = ("fedbuff", "ace", "wkafl")
# {model: title} of the rows with thousands of clients.
TITLES = {"mlp": "MLP 784-200-10", "emnist_cnn": "EMNIST CNN"}
# BlazeFL's published set-up: https://blazefl.readthedocs.io, "Benchmark". Its CNN is that of PyTorch's CIFAR-10
# tutorial, which is LeNet-5's (62,006 parameters), and its ResNet-18 torchvision's, with the first layers for large
# images. The examples per second are read off its plots of seconds: one A100 40 GB and 12 processor cores.
BLAZEFL_CLIENTS = 100
BLAZEFL = {
    "lenet5": ("BlazeFL's CNN", 12_300.0),
    "resnet18": ("BlazeFL's ResNet-18", 5_400.0),
}
BLAZEFL_ALGORITHM = "fedavg"
# The settings that choose among the rows, and those that say how each is run.
SELECTING = ("algorithm", "model", "num_clients")
RUNNING = ("client_trips", "devices", "precision")
ALLOWED = (*SELECTING, *RUNNING, "data_dir")


class Row(NamedTuple):
    """One measurement.

    Attributes:
      model: name of the model.
      rule: name of the rule.
      clients: number of clients.
      title: of the model, for people.
      published: training examples a second that somebody else has published of this set-up; or None.
    """

    model: str
    rule: str
    clients: int
    title: str
    published: float | None = None

    @property
    def name(self) -> str:
        """What the row is called in files and messages: ``mlp fedbuff 1000``."""
        return f"{self.model} {self.rule} {self.clients}"

    @property
    def is_blazefl(self) -> bool:
        """Whether it is BlazeFL's published set-up."""
        return self.model in BLAZEFL


def selected(typed: Mapping[str, Any]) -> list[Row]:
    """The rows that the typed settings ask for, in their order; all of them if nothing is typed.

    Args:
      typed: {setting: value}: ``algorithm`` and ``model``, names with commas between them, and ``num_clients``.

    Returns:
      The rows: models in their order, rules within them, numbers of clients within those.

    Raises:
      SettingError: for a name that no row has, or a choice that no row fits.
    """
    from experiments.tools.benchmarks.workloads import RULES

    rules, models = _listed(typed, "algorithm"), _listed(typed, "model")
    _check("algorithm", rules, (*RULES, BLAZEFL_ALGORITHM))
    _check("model", models, (*TITLES, *BLAZEFL))
    number = typed.get("num_clients")
    if number is not None:
        whole_number("num_clients", number, 1)
    rows = [
        Row(model, rule, clients, TITLES[model])
        for model in TITLES
        for rule in (rules or ALGORITHMS)
        if rule != BLAZEFL_ALGORITHM
        for clients in (CLIENTS if number is None else (number,))
    ]
    rows += [
        Row(model, BLAZEFL_ALGORITHM, BLAZEFL_CLIENTS, title, published)
        for model, (title, published) in BLAZEFL.items()
        if BLAZEFL_ALGORITHM in (rules or (BLAZEFL_ALGORITHM,)) and number in (None, BLAZEFL_CLIENTS)
    ]
    chosen = [row for row in rows if row.model in (models or (row.model,))]
    asked = ", ".join(f"{name}={typed[name]}" for name in SELECTING if typed.get(name) is not None)
    allowed = (
        f"such that a row fits them: {', '.join(TITLES)} with any algorithm and number of clients; "
        f"{', '.join(BLAZEFL)} with algorithm={BLAZEFL_ALGORITHM} and num_clients={BLAZEFL_CLIENTS}"
    )
    require(chosen, "benchmark with", asked, allowed)
    return chosen


def _listed(typed: Mapping[str, Any], setting: str) -> tuple[str, ...]:
    value = typed.get(setting)
    return () if value is None else tuple(items(setting, value))


def _check(setting: str, names: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for name in names:
        if name not in allowed:
            raise unknown_name(setting, name, allowed)
