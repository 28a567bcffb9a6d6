# %% [markdown]
# # 2. Your own data, model, rule, delay and metric
#
# **What you learn here:** how to put each of your own parts in the place of jafl's. All five are plain Python:
# arrays, a Flax module, four small functions, a function of the client's number, and a function of outputs and
# labels.
#
# The example is made up, but has the shape of many real ones: phones recognise what their owners do (sit, walk,
# run, or fall) from 24 numbers a window. Falls are rare. The phones of older people are slower, and it is older
# people who fall.

# %% tags=["sizes"]
client_trips, people = 3_000, 60

# %%
import flax.linen as nn
import jafl, jax
import jax.numpy as jnp
import numpy as np
import optax

ACTIVITIES = ["sit", "walk", "run", "fall"]

# %% [markdown]
# ## Your own data
#
# Data that are divided by client already go in as a dictionary: a name for each client, and its arrays `(x, y)`.
# Replace this cell by one that reads your files.

# %%
random = np.random.default_rng(0)
age = np.sort(random.uniform(20, 90, people))
prototypes = random.normal(size=(len(ACTIVITIES), 24)).astype(np.float32)


def windows_of(person):
    """One person's windows, (x [windows, 24] float32, y [windows] int): the old fall, the young run."""
    old = (age[person] - 20) / 70
    shares = np.array([0.3 + 0.3 * old, 0.39, 0.3 * (1 - old), 0.01 + 0.1 * old**3])
    y = random.choice(4, size=random.integers(40, 160), p=shares / shares.sum())
    gait = 0.5 * random.normal(size=24)  # everybody moves in a way of their own
    return (prototypes[y] + gait + 2.0 * random.normal(size=(len(y), 24))).astype(np.float32), y


by_person = {f"person {person}": windows_of(person) for person in range(people)}
federation = jafl.Federation.from_clients(by_person, test_fraction=0.2, name="activities")
federation

# %% [markdown]
# `test_fraction` takes a fifth of everybody's windows for a common test set. The clients are in the order of age,
# so the picture shows the world's bias at once: who runs is on the left, who falls is on the right.

# %%
jafl.plots.label_split(federation.label_counts())

# %% [markdown]
# ## Your own model, and your own metric
#
# A Flax module as it is (`nnx`, Equinox and a pair of functions work, too). The accuracy hides what we care for,
# since a model that never sees a fall is still right for nearly all windows. So we measure the recall of falls as
# well. A metric gets the outputs and labels of a batch. It returns a number for each example, or, if it is a mean
# over *some* examples, two arrays: what to add up, and what to count.


# %%
class Recogniser(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(len(ACTIVITIES))(nn.relu(nn.Dense(32)(x)))


def recall_of_falls(outputs, labels):
    is_fall = labels == ACTIVITIES.index("fall")
    return is_fall & (jnp.argmax(outputs, axis=-1) == labels), is_fall


model = jafl.Model(Recogniser(), metrics={"recall_of_falls": recall_of_falls})
work = jafl.client_work(model, learning_rate=0.03, local_epochs=1, batch_size=16)
params = model.init(jax.random.key(0), federation.x)
model

# %% [markdown]
# ## Your own delay
#
# A function of the client's number, and of how many trips that client has made before. Here an old phone takes up
# to eight times as long as a new one, and each trip varies a little. Durations depend on the client and its trip
# only, never on the order of events: that is why the same world can be repeated with another rule.


# %%
def seconds(client, trip):
    slowness = 1 + 7 * ((age[client] - 20) / 70) ** 2
    return slowness * np.random.default_rng([client, trip]).uniform(0.8, 1.2)


schedule = jafl.asynchronous(
    num_clients=people,
    concurrency=people // 2,
    buffer_size=5,
    client_trips=client_trips,
    delay=jafl.delays.from_function(seconds),
)
by_age = {"young": np.arange(people // 2), "old": np.arange(people // 2, people)}
jafl.plots.staleness_over_time(schedule, groups=by_age)

# %% [markdown]
# The updates of the old are three times as stale as those of the young, and they come more seldom. The people who
# fall are those whom the server hardly hears.

# %% [markdown]
# ## Your own rule
#
# FedBuff multiplies a stale update by $1/\sqrt{1 + \text{staleness}}$, so it trusts the old even less. Let us try
# the opposite: weights that *grow* with staleness. A rule is four functions.
#
# * `init` makes what lasts from step to step (here nothing),
# * `begin` empties the buffer,
# * `fold` adds one arrival to it, and may report numbers,
# * `finish` returns the direction to *descend*: minus the mean, since an update points downhill.
#
# The reports `weight` and `weight_scale` are what jafl computes each client's influence from. Others may have any
# name.
#
# With `@jafl.specification`, the rule's floats are data of the compiled program: another exponent compiles nothing
# again.

# %%
from jafl.rules import accumulate


@jafl.specification
def patient_mean(exponent: float = 0.5) -> jafl.Rule:
    """The mean of the updates, weighted by (1 + staleness) ** exponent."""

    def init(params, num_clients):
        return ()

    def begin(state, params):
        return accumulate.zeros(params), 0.0

    def fold(buffer, arrival):
        total, weights = buffer
        weight = (1.0 + arrival.staleness) ** exponent
        return (accumulate.add(total, weight, arrival.update), weights + weight), {"weight": weight}

    def finish(buffer, params):
        total, weights = buffer
        return accumulate.scaled(-1.0 / weights, total), (), {"weight_scale": 1.0 / weights}, True

    return jafl.Rule(init, begin, fold, finish)


# %% [markdown]
# Everything goes into `simulate` as jafl's own parts do. We train with three exponents: one distrusts stale
# updates, one treats all alike, one prefers them. Three seeds each say how much is chance.

# %% tags=["clock"]
exponents = {"fresh first (-0.5)": -0.5, "all alike (0)": 0.0, "stale first (+0.5)": 0.5}
rate = jafl.specify(optax.sgd, learning_rate=1.0)
histories = {
    label: [
        jafl.simulate(
            schedule,
            federation,
            work,
            patient_mean(exponent),
            params,
            jax.random.key(seed),
            server_optimizer=rate,
        )
        for seed in (1, 2, 3)
    ]
    for label, exponent in exponents.items()
}

# %%
jafl.plots.accuracy(histories, metric="test_recall_of_falls", title="recall of falls")

# %%
jafl.plots.accuracy(histories, scale="linear", title="accuracy")

# %%
first_seed = {label: seeds[0].weights for label, seeds in histories.items()}
jafl.plots.influence(schedule, first_seed)

# %% [markdown]
# In accuracy the three rules can hardly be distinguished. In the metric of your own they can: the more a stale update
# counts, the more falls are recognised. The last picture says why. The blue line is how often each client came, the
# quick and young on the left. Distrust of stale updates takes even more influence from those who are slow and old;
# trust in them nearly evens it out.
#
# The bands are narrow because the seeds change only the order of the examples. Another world of another seed would
# vary more, and the test set has few falls. Notebook 3 is more careful in both.
#
# **Next:** [one world, ten rules](3_one_world_ten_rules.ipynb).
