"""What is known of a setting beside its name, type, default and help text: its group, and which runs read it."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence

# In the order in which --helpfull prints them.
GROUPS = {
    "run": "What to run, and for how long",
    "data": "Data set",
    "partition": "Partition among the clients",
    "model": "Model",
    "training": "Clients' training",
    "server": "Server and aggregation rule",
    "privacy": "Privacy of the clients: differential privacy, secure aggregation",
    "protocol": "Protocol: who trains when, and when the server steps",
    "delay": "Delays",
    "presence": "Presence: availability, dropout and failures",
    "output": "What is measured",
}
# Those of the world in which runs live: which examples there are, who holds them, how long a trip takes, who is
# there, fails or leaves. Runs that are compared share it (``jafl.config.world``).
WORLD = ("data", "partition", "delay", "presence")
# In place of the names of readers: those whose function takes an argument of the setting's name.
BY_ARGUMENT: tuple[str, ...] = ()
MOVING = ("asynchronous", "open_arrivals")  # protocols without rounds, in which places are taken again
# Protocols in which clients come, leave and fail.
EVENTFUL = ("asynchronous", "open_arrivals", "synchronous")
NOT_IN_ROUNDS = ("asynchronous", "open_arrivals", "drawn_staleness")
# Data sets of texts whose next token is to be predicted at each place: y is [E, T].
WITH_NEXT_TOKENS = ("python_source",)


class State(enum.Enum):
    """What another setting must be for a run to read a setting, in place of names of values."""

    GIVEN = "given"  # another than its default
    LEFT_OUT = "left out"
    SAME = "left out or the same"  # number as the setting itself


GIVEN, LEFT_OUT, SAME = State
Case = Mapping[str, tuple[str, ...] | State]


@dataclasses.dataclass(frozen=True)
class Readers:
    """Which runs read a setting: those of one of the ``cases``, which is {another setting: its values there}.

    A case names other settings with values. It holds in a run that reads each of these settings and has one of
    the values for it. A case that wants a setting left out also holds in runs that do not read it. Without any case
    no run would read the setting.
    """

    cases: tuple[Case, ...]

    def __or__(self, other: "Readers") -> "Readers":
        return Readers(self.cases + other.cases)

    def reader_values(self, setting: str) -> tuple[str, ...] | None:
        """The values of ``setting`` with which runs may read it; None where all may, ``BY_ARGUMENT`` as it is."""
        values = [case.get(setting) for case in self.cases]
        if BY_ARGUMENT in values:
            return BY_ARGUMENT
        named = [names for names in values if isinstance(names, tuple)]
        return tuple(name for names in named for name in names) if len(named) == len(values) else None

    def include(self, setting: str, value: str) -> bool:
        """Whether runs whose ``setting`` has this value may read it, ``BY_ARGUMENT`` taken for all."""
        return value in (self.reader_values(setting) or (value,))


def only(**where: str | tuple[str, ...] | State) -> Readers:
    """The runs in which each of these settings has this value, or one of these; ``|`` joins several such."""
    return Readers(({name: (names,) if isinstance(names, str) else names for name, names in where.items()},))


def join_with_or(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def describe_case(case: Case, by_argument: Mapping[str, Sequence[str]] | None = None) -> str:
    """A case in words: "protocol is synchronous, and start_rate is left out".

    by_argument: {setting: the values for ``BY_ARGUMENT``}; without it such conditions are left out.
    """
    words = []
    for setting, names in case.items():
        if names == BY_ARGUMENT:
            names = tuple((by_argument or {}).get(setting, ()))
        if names:
            words.append(f"{setting} is {names.value if isinstance(names, State) else join_with_or(names)}")
    return ", and ".join(words)


def default_model(dataset: str) -> str:
    """The model of a data set where none is asked for."""
    return "character_lstm" if dataset in WITH_NEXT_TOKENS else "mlp"


EVERY_RUN = Readers(({},))


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What is known of a setting beside its name, type, default and help text.

    Attributes:
      group: of ``GROUPS``, under which the help prints it. Those of data decide which examples there are, those of
        partition who holds them.
      readers: the runs that read it; where none of a command's runs does, it is refused.
      varying: arguments of a call of which the same holds.
      varies: a number on which neither schedule nor partition depend: runs that differ in it share one compiled
        program.
      preset: whether an algorithm's preset fills it in where it is None; of a call the arguments that it fills in.
      excludes: the setting that must not be given beside it.
      trips_per_step: whether it holds the trips per server step, in the protocols that read it.
      decides_examples: the data sets whose examples it decides, of a setting of another group than data.
      most_used: whether --help explains it, too.
    """

    group: str
    readers: Readers
    varies: bool = False
    varying: tuple[str, ...] = ()
    preset: bool | tuple[str, ...] = False
    excludes: str = ""
    trips_per_step: bool = False
    decides_examples: Readers | None = None
    most_used: bool = False
