# %% [markdown]
# # 3. One world, ten rules: staleness, fairness, influence
#
# **What you learn here:** how ten aggregation rules fare in one world, with equal tuning and several seeds; and how
# to read from staleness and influence *why* they differ.
#
# The world is one in which asynchrony does harm. Of 60 clients, 45 are quick and hold the digits 4 to 9; the other
# 15 are about seven times slower and alone hold the digits 0 to 3. Whoever listens to the quick ones only cannot
# get above 60 %, for then four digits of ten remain unknown.

# %% tags=["sizes"]
client_trips = 3_000
rates = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]  # of the server, tried for every rule
seeds = [1, 2, 3, 4, 5, 6, 7, 8]

# %%
import dataclasses
import warnings

import jafl, jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

plt.rcParams["figure.dpi"] = 150
quick, slow = np.arange(45), np.arange(45, 60)
groups = {"quick, digits 4-9": quick, "slow, digits 0-3": slow}

source = jafl.data.digits(validation_fraction=0.1)
partition = jafl.data.label_groups(source.y, [(45, range(4, 10)), (15, range(4))], seed=0)
federation = jafl.federate(source, partition)
delay = jafl.delays.groups([(45, jafl.delays.uniform(1.0, 2.0)), (15, jafl.delays.uniform(8.0, 12.0))])

# %% [markdown]
# All clients train all the time. The server makes a step whenever five updates have arrived. ACE and ACED are
# different: as their paper has it, they step at *every* arrival, after a first round in which each client trains
# once at the initial model. So we compare at equal client trips, which is what clients pay for, and not at equal
# steps.


# %%
def schedule(seed, at_every_arrival=False):
    return jafl.asynchronous(
        num_clients=60,
        concurrency=60,
        buffer_size=1 if at_every_arrival else 5,
        initial_round=at_every_arrival,
        client_trips=client_trips,
        delay=delay,
        seed=seed,
    )


jafl.plots.staleness_over_time(schedule(0), groups=groups)

# %% [markdown]
# The lines are the mean staleness of each group's updates. A slow client's update is seven times as stale, for the
# server makes seven times as many steps while that client trains.

# %% [markdown]
# ## Ten rules
#
# The plain mean does not look at staleness. FedBuff and exponential weighting count a stale update less, and SASGD,
# TWAFL and WKAFL do so as well, each in its own way. FedStaleWeight counts clients *more* that are late on average.
# The last three remember the newest update of every client, and step along a mean over clients in place of
# arrivals.

# %%
rules = {
    "plain mean": jafl.rules.fedavg(),
    "FedBuff": jafl.rules.fedbuff(),
    "exponential": jafl.rules.exponential_weighting(base=0.5),
    "SASGD": jafl.rules.sasgd(),
    "TWAFL": jafl.rules.twafl(),
    "WKAFL": jafl.rules.wkafl(buffer_size=5),
    "FedStaleWeight": jafl.rules.fedstaleweight(),
    "CA2FL": jafl.rules.ca2fl(),
    "ACE": jafl.rules.ace(),
    "ACED": jafl.rules.aced(active_steps=100),
}


def on_slow_digits(outputs, labels):
    """Which examples of the digits 0 to 3 are right, and which are such digits: a metric, as in notebook 2."""
    return (labels < 4) & (jnp.argmax(outputs, axis=-1) == labels), labels < 4


model = jafl.models.mlp(source.num_classes, hidden_sizes=[32])
model = dataclasses.replace(model, metrics={"on_slow_digits": on_slow_digits})
work = jafl.client_work(model, learning_rate=0.1, local_steps=4, batch_size=16)
params = model.init(jax.random.key(0), federation.x)


def run(name, rate, seed):
    """One run of a rule: with a server's rate, and a seed for the schedule and the order of the examples."""
    events = schedule(seed, at_every_arrival=name in ("ACE", "ACED"))
    server = jafl.specify(optax.sgd, learning_rate=rate)
    return jafl.Run(events, federation, work, rules[name], params, jax.random.key(seed), server)


# %% [markdown]
# ## Equal tuning
#
# The scale of a step differs from rule to rule: SASGD divides a gradient by its age, so the same server's rate
# means a much smaller step. With one rate for all, the order of the rules would say little but whose scale fits. So
# every rule gets the same eight rates, judged on *validation* examples with a seed (0) that is not used afterwards.
# Seeds and rates are numbers, not code: the eight runs of a rule train as one program.

# %%
warnings.simplefilter("ignore", jafl.NotLearningWarning)  # some rates are meant to be too high


def validation_accuracy(history):
    """Of the run's end; 0 for a run that has diverged."""
    return (
        0.0 if isinstance(history, jafl.DivergenceError) else history.evaluations[-1]["validation_accuracy"]
    )


best = {}
for name in rules:
    found = [validation_accuracy(h) for h in jafl.simulate_many([run(name, rate, seed=0) for rate in rates])]
    best[name] = rates[int(np.argmax(found))]
    print(f"{name:15}", *(f"{accuracy:.2f}" for accuracy in found), "  best rate:", best[name])

# %% [markdown]
# ## The runs
#
# Each rule with its own best rate, over eight other seeds. The number after ± is a standard error.

# %%
histories = {name: jafl.simulate_many([run(name, best[name], seed) for seed in seeds]) for name in rules}


def mean_of(name, metric):
    """Mean over seeds of a metric at the end, and its standard error."""
    values = [history.evaluations[-1][metric] for history in histories[name]]
    return np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))


final = {name: mean_of(name, "test_accuracy") for name in rules}
for name in sorted(rules, key=lambda name: -final[name][0]):
    print(f"{name:15} {final[name][0]:.3f} ± {final[name][1]:.3f}")

# %%
shown = ["ACE", "CA2FL", "FedStaleWeight", "plain mean", "FedBuff", "SASGD"]
jafl.plots.accuracy({name: histories[name] for name in shown}, scale="linear")

# %% [markdown]
# ## Whose updates count: influence
#
# A client's *influence* is its share of all the weight that the rule has given. If all clients counted the same, each
# would have 1/60. The picture shows influence in units of that fair share. The slow clients are on the right: they
# make few trips.

# %%
chosen = ["FedBuff", "FedStaleWeight", "CA2FL"]
one = histories["FedBuff"][0].schedule
jafl.plots.influence(one, {name: histories[name][0].weights for name in chosen})

# %% [markdown]
# Now all ten rules: the influence of a slow client, in units of the fair share, and how well the model ends up
# knowing the digits that only slow clients hold.

# %%
print(f"{'':15} influence of a slow client   accuracy on 0-3   fairness loss   Gini")
points = {}
for name in rules:
    shares = np.mean([history.influence for history in histories[name]], axis=0)
    of_slow = jafl.diagnostics.of_fair_share(one, shares, groups)["slow, digits 0-3"]
    points[name] = (of_slow, mean_of(name, "test_on_slow_digits")[0])
    loss, gini = jafl.diagnostics.fairness_loss(shares), jafl.diagnostics.gini(shares)
    print(f"{name:15} {of_slow:26.2f} {points[name][1]:17.2f} {loss:15.2f} {gini:6.2f}")

# %%
near = {}  # names of points that lie together share one label
for name, (across, up) in points.items():
    near.setdefault((round(4 * across), round(4 * up)), []).append(name)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for names in near.values():
    across, up = zip(*(points[name] for name in names))
    axes.plot(across, up, "o", color="C0")
    axes.annotate("\n".join(names), (min(across), max(up)), (0, 6), textcoords="offset points")
axes.axvline(1, color="black", linestyle="--", linewidth=1)
axes.set(xlabel="influence of a slow client (1 is the fair share)", ylabel="accuracy on digits 0 to 3")
axes.set(xlim=(-0.05, 1.25), ylim=(-0.05, 1.05))
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## What we see
#
# One number explains nearly the whole order of ten rules: how much a slow client counts.
#
# * **Five rules that punish staleness never learn the slow clients' digits**, although each of them has the best of
#   eight rates. They make the bias of the schedule worse. The plain mean, which does nothing about staleness, is
#   above them.
# * **FedStaleWeight** raises a slow client to half of its fair share. Where it ends depends most on the seed,
#   because now and then a heavy and very stale update arrives.
# * **CA2FL and ACE** remember an update of every client, so a slow one counts while it is away, too. They end
#   alike, and ACE is there much sooner. Both pay with memory: one model for each client, which notebook 4 puts a
#   number on.
# * **ACED** forgets a client that has been silent for 100 arrivals. A slow client returns after about 300 here, so
#   it counts for a third of the time. With a larger `active_steps` it would become ACE.
#
# What we do *not* see: that these are the best rules. This world was chosen to be hard for staleness weights. Where
# slow clients have the same labels as quick ones, a stale update is little more than noise, and weighing it down
# does no harm. The budget is one, and so is the model. [experiments/README.md](../experiments/README.md) has worlds
# in which the order is another one.
#
# **Next:** [thousands of clients on a TPU](4_thousands_of_clients_on_a_tpu.ipynb).
