"""ACE (2025), figure 2 once more, where the slow clients have labels that the fast ones do not hold.

Command: python run.py --experiment=ace_fig2_own_labels --tune
    --tune searches for the server's rates first; --scale=paper takes CIFAR-10 once ``run.py --prepare=cifar10`` has
    been run.

Published: nothing. In the paper's figure 2 the slow clients are any fifth of all (ace_fig2). Section 4 says that ACE,
which averages the last updates of all clients, is free of participation bias: the one of rules that hear less often
from slow clients. In this world that bias should cost most.

Open choices: the slow fifth are the clients that are richest in labels 0 to 2 (``richest_last=0-2``). All else is as
in ace_fig2, with a search of its own: rates of the paper's world would fit another one. All claims are our own: the
paper's sentences on its own panels.

Desk size: ace_fig2's, on the same splits.

What changed: both worlds were one experiment, with one rate for both; it took 17 minutes. All seeds are new: those of
ACE's results and searches before 160 had been looked at.
"""

from experiments import ace_fig2
from experiments.machinery import PaperExperiment, Published

EXPERIMENT = PaperExperiment(
    paper="ACE",
    figure="figure 2, slow clients with own labels",
    title="all-client, buffered and single-client rules, where slow clients have labels of their own",
    published=Published(
        note="The paper does not have this world. Figure 2's order, in all its panels, is tried here."
    ),
    scales=ace_fig2.scales(
        {"richest_last": ace_fig2.RICHEST},
        spread=0.03,
        source="seeds 60 to 79 with one rate for both worlds: 0.025; more, to be safe",
    ),
    claims=ace_fig2.claims(own_world=True),
    pictures=ace_fig2.draw,
    words=ace_fig2.WORDS,
)
