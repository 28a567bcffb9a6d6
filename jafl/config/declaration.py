"""What is known of a setting beside its name, type, default and help text."""

import dataclasses
from collections.abc import Sequence

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
# Settings that runs of some protocols do not read; they have their defaults there.
NOT_ALWAYS_READ = ("availability", "dropout")
# Data sets of texts whose next token is to be predicted at each place: y is [E, T].
WITH_NEXT_TOKENS = ("python_source", "shakespeare")


def join_with_or(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def default_model(dataset: str) -> str:
    """The model of a data set where none is asked for."""
    return "character_lstm" if dataset in WITH_NEXT_TOKENS else "mlp"


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What is known of a setting beside its name, type, default and help text.

    Attributes:
      group: of ``GROUPS``, under which the help prints it. Those of data decide which examples there are, those of
        partition who holds them.
      varying: arguments of a call of which the same holds.
      varies: a number on which neither schedule nor partition depend: runs that differ in it share one compiled
        program.
      preset: whether an algorithm's preset fills it in where it is left out; of a call the arguments that it fills
        in, and the setting's own name where it decides the factory.
    """

    group: str
    varies: bool = False
    varying: tuple[str, ...] = ()
    preset: bool | tuple[str, ...] = False
