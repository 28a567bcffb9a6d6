# %% [markdown]
# # 5. Reading a schedule before training
#
# **What you learn here:** how much a schedule tells before a single gradient is computed. The mean staleness is
# decided by two numbers of yours, and not by the delays. The delays decide who is stale. And what a *private* run
# would cost can be computed exactly in advance.
#
# Nothing in this notebook trains: it needs seconds where training would take hours.

# %% tags=["sizes"]
num_clients, in_flight, buffer_size, client_trips = 10_000, 1_000, 10, 40_000

# %%
import jafl
import matplotlib.pyplot as plt
import numpy as np

plt.rcParams["figure.dpi"] = 150
laws = {
    "uniform": jafl.delays.uniform(0.5, 1.5),
    "half-normal": jafl.delays.half_normal(1.0),
    "exponential": jafl.delays.exponential(1.0),
    "log-normal": jafl.delays.log_normal(1.0),
    "Pareto": jafl.delays.pareto(1.0, shape=1.5),
}


def schedule(delay, **options):
    world = dict(
        num_clients=num_clients, concurrency=in_flight, buffer_size=buffer_size, client_trips=client_trips
    )
    return jafl.asynchronous(**{**world, **options}, delay=delay)


schedules = {name: schedule(law) for name, law in laws.items()}
schedules["half-normal"]

# %% [markdown]
# ## Staleness is conserved
#
# Think of staleness as a debt. A trip owes nothing when it begins. Each time the server makes a step, every trip
# that is under way grows staler by one. When the tenth update fills the buffer, its client is replaced only after
# the step, so at every step exactly *M* - 1 of the *M* clients in flight are in the middle of a trip. So each step
# creates a debt of *M* - 1, whatever the delays. After *T* steps
#
# > staleness of all applied trips + staleness so far of the trips under way = *T* (*M* - 1).
#
# This is an identity, not an approximation (as long as no two arrivals fall on the same instant):

# %%
print(f"{'':12} applied  + under way =      total    T (M - 1)    mean staleness   largest")
for name, events in schedules.items():
    applied = int(events.staleness.sum())
    under_way = int((events.num_steps - events.inflight_version).sum())
    expected = events.num_steps * (in_flight - 1)
    late = f"{events.staleness.mean():12.1f} {events.staleness.max():13,}"
    print(f"{name:12} {applied:9,} {under_way:9,} {applied + under_way:12,} {expected:12,} {late}")

# %% [markdown]
# Divide by the *K* trips that each step applies, and the mean staleness of a long run is (*M* - 1) / *K*. You cannot
# buy a smaller mean with a quicker network, if all clients get quicker alike. You can buy it with fewer clients in
# flight or with a larger buffer. (In the table the means are a little smaller, for the debt of the trips under way
# at the end is still unpaid. The heavier the tail of the law, the more that is.)

# %%
print(f"{'M':>6} {'K':>4} {'(M - 1) / K':>12} {'measured':>9}")
for concurrency, size in ((in_flight, 10), (in_flight, 50), (in_flight // 5, 10), (in_flight // 5, 2)):
    events = schedule(laws["exponential"], concurrency=concurrency, buffer_size=size)
    print(f"{concurrency:6,} {size:4} {(concurrency - 1) / size:12.1f} {events.staleness.mean():9.1f}")

# %% [markdown]
# Where it does *not* hold: synchronous rounds (every update is fresh); constant durations, where many clients
# arrive at the same instant and are all replaced after the last step of that instant; and worlds in which nobody is
# there to take a free place, so that fewer than *M* are under way.
#
# ## What a delay law does
#
# The law distributes that debt. All five laws below have the same number of clients in flight and the same buffer,
# so nearly the same mean. Their tails are another matter:

# %%
jafl.plots.staleness(schedules)

# %% [markdown]
# Under the uniform law no update is staler than 155 steps. Under the Pareto law most are fresher than that mean,
# and a few were made from a model that is nearly as old as the run.
#
# Whether a duration belongs to the *trip* or to the *client* matters more than its law. Above, every trip draws
# again, so each client is late now and then. If a client keeps its speed, the mean is still the same, and it is
# always the same clients that are late:

# %%
once = schedule(jafl.delays.once_per_client(laws["log-normal"]))
print("mean staleness:", once.staleness.mean().round(1), "drawn once per client;", end=" ")
print(schedules["log-normal"].staleness.mean().round(1), "drawn for every trip")

speeds = jafl.diagnostics.groups_by_speed(once, parts=3)
speeds.pop("without a trip", None)
jafl.plots.staleness_over_time(once, groups=speeds)

# %%
for name, events in {"for every trip": schedules["log-normal"], "once per client": once}.items():
    said = jafl.diagnostics.summary(events)
    share = said["influence"]["client trips"]
    part = said["clients"]["took_part"] / num_clients
    print(f"drawn {name:16} {part:.0%} of the clients took part, Gini {share['gini']:.2f}")

# %% [markdown]
# That is a matter of staleness, and not yet of who takes part: the next client is drawn at random among the idle
# ones, and with ten clients for each place a slow one is idle, and drawn, nearly as often as a quick one. The fewer
# stand by, the more the quick ones get ahead. With *all* clients in flight a client's share is simply its speed.
# Weights that follow from the schedule can be applied here already, before any training: FedBuff's, and
# FedStaleWeight's.

# %%
crowded = schedule(jafl.delays.once_per_client(laws["log-normal"]), num_clients=in_flight)
weights = {
    "FedBuff": 1 / np.sqrt(1 + crowded.staleness),
    "FedStaleWeight": jafl.diagnostics.equation_8_weights(crowded),
}
within_steps = {name: jafl.diagnostics.normalized_within_steps(crowded, of) for name, of in weights.items()}
jafl.plots.influence(crowded, within_steps)

# %% [markdown]
# ## What a private run would cost
#
# In differential privacy with clients as the unit, the noise has to hide *everything that one client contributes to
# the whole run*. For a rule like FedBuff the schedule decides what that is: who takes part in which step, with which
# weight. So `jafl.privacy.account` states the ε of a run before anything is trained. Here each update is clipped to
# norm 1, and noise comes from a binary tree over the steps (DP-FTRL), enough for ε = 6 *if every client took part
# once*. That is how papers set it.


# %%
# Every update counts alike here: without a staleness weight.
rule = jafl.rules.fedbuff(staleness_weight=jafl.rules.staleness.constant())


def accounted(events):
    return jafl.privacy.account(events, rule, clip_norm=1.0, delta=1e-5, epsilon=6.0, epsilon_reading="once")


fewer = client_trips // 4
reports = {
    f"{fewer:,} trips": accounted(schedule(laws["half-normal"], client_trips=fewer)),
    f"{client_trips:,} trips": accounted(schedules["half-normal"]),
    f"{fewer:,} trips, one pass": accounted(
        schedule(laws["half-normal"], client_trips=fewer - in_flight, most_trips=1)
    ),
}
print(f"{'':30}", *(f"{name:>24}" for name in reports))
for row, number in {
    "most trips of one client": lambda report: report.pattern.most_trips,
    "clients with more than one": lambda report: report.pattern.repeated,
    "smallest gap (steps)": lambda report: report.pattern.smallest_gap,
    "noise multiplier": lambda report: f"{report.noise_multiplier:.2f}",
    "ε, everybody once": lambda report: f"{report.epsilon_once:.1f}",
    "ε, realised": lambda report: f"{report.epsilon_realised:.1f}",
    "ε, worst case": lambda report: f"{report.epsilon_worst_case:.1f}",
}.items():
    print(f"{row:30}", *(f"{number(report)!s:>24}" for report in reports.values()))

# %% [markdown]
# Read the first column: as many trips as clients are *not* one pass over the clients. Idle clients are drawn at
# random, so some are drawn again and again while others wait, and "ε = 6" is in truth the number in the row
# *realised*. Selection without replacement (`most_trips=1`) makes the claim true. FedBuff's own weights, which fall
# with staleness, bring it nearer, since a late update then moves the model less. The *worst case* is what you may
# claim for every schedule with as many trips of a client, as far apart, and not only for this one.
#
# The realised ε is that of the client who takes part most. Every client has an ε of its own:

# %%
name = f"{client_trips:,} trips"
jafl.plots.epsilon_per_client(
    reports[name].per_client_epsilon,
    {"everybody once": reports[name].epsilon_once, "realised": reports[name].epsilon_realised},
)

# %% [markdown]
# Before you put such a number into a paper, say under which conditions it holds. The report lists them:

# %%
for condition in reports[name].conditions:
    print("-", condition)

# %% [markdown]
# To train with it, put `jafl.private(rule, clip_norm=..., epsilon=..., delta=...)` in the place of the rule;
# [docs/privacy.md](../docs/privacy.md) explains the mechanisms, the three readings of ε and what they cost.
#
# **Next:** [repeat a paper's figure](6_repeat_a_papers_figure.ipynb).
