"""EF21: clients send the compressed change of their update (Richtárik et al., NeurIPS 2021, algorithm 2)."""

from jafl.records import Requirements, Rule
from jafl.rules import accumulate
from jafl.specifications import specification


@specification
def ef21() -> Rule:
    """EF21: clients send compressed changes of their updates, and the server steps along the mean of its estimates.

    Server and client i keep the same estimate h_i of the client's update, 0 at first. With an update u and a
    compressor C the client sends C(u - h_i); both make h_i <- h_i + C(u - h_i). The server needs the mean of all h_i
    alone: h <- h + (1/N) sum C(u - h_i), over the step's trips, and w <- w + eta h, with N the number of all clients
    (Richtárik et al., NeurIPS 2021, arXiv 2106.05203, algorithm 2, whose g_i is -h_i). As the updates settle, so do
    the estimates: with full gradients EF21 ends at the exact optimum of unlike clients, where a biased compressor
    alone does not, and error feedback ends near it.

    The paper's clients all take part in each round with one full gradient: ``jafl.synchronous`` with all clients,
    ``batch_size=0``, one local step. With some clients a step it is EF21-PP (Fatkhullin et al. 2021, arXiv
    2110.03294); with several local steps, or asynchronous, it is a reading. Its server learning rate is that of rules
    that step along all clients' updates, as ACE: with a compressor that leaves nothing out it is incremental ACE.

    Usual mistake: to divide the sum by the step's trips and not by the number of clients.

    Use it with ``jafl.client_work(..., correction="ef21", compression=...)``. Reports ``weight`` per trip.

    Returns:
      The rule, as a specification, for ``jafl.simulate``.

    Examples:
      >>> model = jafl.models.softmax(10)
      >>> top_k = jafl.compression.top_k(0.1)
      >>> work = jafl.client_work(model, learning_rate=0.1, correction="ef21", compression=top_k)
      >>> jafl.rules.ef21().build().correction
      'ef21'
    """

    def init(params, num_clients):
        return accumulate.zeros(params), accumulate.number(num_clients)

    def begin(state, params):
        return state

    def fold(buffer, arrival):
        estimate, clients = buffer
        return (accumulate.add(estimate, 1 / clients, arrival.update), clients), {"weight": 1 / clients}

    def finish(buffer, params):
        return accumulate.scaled(-1.0, buffer[0]), buffer, {}, True

    return Rule(init, begin, fold, finish, requirements=Requirements(correction="ef21", empty_steps=True))
