"""Where the server's error comes from, measured with full gradients while the run goes on.

``decomposed`` splits the difference between the server's direction and the gradient of the objective into noise, bias
and delay (ACE paper, equations 3 and 4); ``decomposed_four_ways`` splits it into staleness, sampling, drift and
re-weighting (FedStaleWeight, appendix A). Both return a rule to use in the place of the one that they watch: the run
trains exactly as without them, and its history has the squared norms of the terms at the chosen steps.

Letters: N clients, Q local steps, eta_l the clients' learning rate; F_i is client i's objective over all its
examples, L2 term included, and F the mean of F_i over the N clients, whatever their numbers of examples. w^t is the
model before server step t; w_stale_i the one from which client i trained for the last update that the server has
received from it, those of step t included, and w^0 before the first.
"""

from jafl.rules.decomposition.four_way import decomposed_four_ways as decomposed_four_ways
from jafl.rules.decomposition.three_way import decomposed as decomposed
