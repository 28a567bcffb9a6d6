"""The work of a client in one trip, and the optimizers that it may use."""

from jafl.clients.work import (
    ClientData,
    ClientResult,
    ClientStateRequest,
    ClientWork,
    client_work,
    dropout_key,
    minibatches,
    trip_words,
)

__all__ = [
    "ClientData",
    "ClientResult",
    "ClientStateRequest",
    "ClientWork",
    "client_work",
    "dropout_key",
    "minibatches",
    "trip_words",
]
