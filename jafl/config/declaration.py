"""The groups of settings, and words that several modules need, without JAX."""

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
