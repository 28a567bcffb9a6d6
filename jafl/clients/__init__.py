"""The work of a client in one trip, and the optimizers that it may use."""

from jafl.clients.minibatch_gradients import dropout_key, minibatches, trip_words
from jafl.clients.personal import ditto
from jafl.clients.records import ClientData, ClientResult, ClientStateRequest, ClientWork
from jafl.clients.work import client_work

__all__ = [
    "ClientData",
    "ClientResult",
    "ClientStateRequest",
    "ClientWork",
    "client_work",
    "ditto",
    "dropout_key",
    "minibatches",
    "trip_words",
]
