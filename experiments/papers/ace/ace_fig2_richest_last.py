"""ACE (2025), figure 2 once more, where the slow clients are the ones that are richest in three of the labels.

Command: python run.py experiment ace_fig2_richest_last --tune
    ``run.py prepare fashion_mnist`` comes first. --tune searches for the server's rates; --scale=paper takes CIFAR-10
    once ``run.py prepare cifar10`` has been run.

Published: nothing. In the paper's figure 2 the slow clients are any fifth of all (ace_fig2). A rule that hears less
often from slow clients is biased towards the fast ones; section 4 says that ACE, which averages the last updates of
all clients, is free of this participation bias. It should cost most where slow and fast clients have other data.

Open choices: the slow fifth are the clients that are richest in labels 0 to 2 (``richest_last=0-2``). They hold 55 %
of the examples with these labels at Dirichlet 0.1, and 43 % at 0.3 (means over the twenty seeds), where any fifth
would hold 20 %. All else is as in ace_fig2, with a search of its own, because rates that suit the paper's world need
not suit this one. The claims are the paper's sentences on figure 2. As it does not make them of this world, all count
as our own.

Desk size: ace_fig2's arms, on the same splits: five searches over the same ranges, results of twenty seeds.

What changed: an earlier ace_fig2 ran both worlds, with one rate for both. Protocol version 1 searched on a coarser
grid; all seeds are new. Results of version 1 are of 5,000 MNIST digits, in the place of Fashion-MNIST. FedBuff with
momentum is new.
"""

from experiments.harness import PaperExperiment, Published
from experiments.papers.ace import ace_fig2

EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure 2, slow clients richest in labels 0-2",
    title="all-client, buffered and single-client rules, where slow clients are richest in three of the labels",
    published=Published(
        note="The paper does not have this world. Figure 2's order, in all its panels, is tried here."
    ),
    scales=ace_fig2.scales(
        {"richest_last": ace_fig2.RICHEST},
        spread=0.042,
        source="seeds 3010 to 3013 at three tenths of the middle rates: 0.041",
    ),
    claims=ace_fig2.claims(own_world=True),
    words=ace_fig2.WORDS,
)
