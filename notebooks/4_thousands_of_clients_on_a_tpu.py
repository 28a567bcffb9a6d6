# %% [markdown]
# # 4. Thousands of clients on a TPU
#
# **What you learn here:** what to ask before you rent an accelerator, what keeps one busy, which precision it
# computes in, and how a whole comparison becomes one compiled program.
#
# Everything here runs on a CPU as well. jafl chooses by itself what suits the machine; nothing below has to be set
# by hand on a TPU, except the precision.

# %% tags=["sizes"]
num_clients, in_flight, client_trips = 5_000, 1_000, 10_000
rates = [1.0, 3.0, 10.0, 30.0]  # of the server

# %%
import dataclasses
import importlib.util

import jafl, jax
import matplotlib.pyplot as plt
import numpy as np
import optax

plt.rcParams["figure.dpi"] = 150
print(f"JAX computes on: {jax.devices()[0].platform}, {jax.device_count()} device(s)")

# %% [markdown]
# ## The world
#
# FedProx's synthetic data: every client has examples of its own, and a softmax model learns them. A thousand
# clients train at once, and durations are log-normal: most trips are short, a few are very long.

# %%
source = jafl.data.synthetic(
    num_clients=num_clients, alpha=1.0, beta=1.0, mean_examples=20.0, shared_labels=True
)
federation = jafl.federate(source, source.natural_partition)
federation


# %%
def schedule(buffer_size):
    return jafl.asynchronous(
        num_clients=num_clients,
        concurrency=in_flight,
        buffer_size=buffer_size,
        client_trips=client_trips,
        delay=jafl.delays.log_normal(1.0),
    )


events = schedule(10)
events

# %%
model = jafl.models.softmax(source.num_classes)
work = jafl.client_work(model, learning_rate=0.05, local_epochs=1, batch_size=10)
params = model.init(jax.random.key(0), federation.x)
run = jafl.Run(events, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))

# %% [markdown]
# ## Ask before you rent
#
# `jafl.forecast` compiles a run for chips that are not here and says whether it fits, and how much memory each chip
# needs. Nothing runs there. The compiler is in the package `libtpu`, which a TPU runtime has and which
# `pip install "jafl[tpu]"` brings elsewhere.
#
# ACE is the expensive question. It remembers an update of *every* client, so its memory grows with the number of
# clients, while FedBuff's does not. `print(forecast)` shows more: the memory by its parts, the plan, and what the
# same run takes on this machine by the clock.

# %%
if importlib.util.find_spec("libtpu"):
    first_round = jafl.asynchronous(
        num_clients=num_clients,
        concurrency=num_clients,
        initial_round=True,
        client_trips=2 * num_clients,
        delay=jafl.delays.log_normal(1.0),
    )
    questions = {"FedBuff": run, "ACE": run._replace(schedule=first_round, rule=jafl.rules.ace())}
    for name, subject in questions.items():
        try:
            forecast = jafl.forecast(subject, "v5e:1x1", measure=False)
        except (
            jafl.SettingError
        ) as error:  # a compiler that does not go with this JAX: it says which one does
            print(error)
            break
        print(f"{name} on {forecast.topology}: {'fits' if forecast.fits else 'does not fit'}")
        print(f"  {forecast.needed / 2**20:.0f} MiB of {forecast.available / 2**30:.1f} GiB, {forecast.plan}")
else:
    print('No compiler for TPUs is here. pip install "jafl[tpu]" brings it.')

# %% [markdown]
# Both fit easily, because a softmax model has 610 parameters: ACE's memory of 5,000 clients takes 12 MB. With
# ResNet-18's eleven million parameters the same memory would take 220 GB. A forecast then says that one chip is not
# enough, and on how many chips of this kind the run fits (`fewest_chips`), for the price of some minutes of
# compiling.
#
# ## Waves: what keeps an accelerator busy
#
# A client's own arithmetic is tiny, and an accelerator is quick only if it does much at once. Trips may train side
# by side whenever the versions that they start from exist already. Such a set of trips is a *wave*. jafl knows the
# schedule, so it knows all waves before it compiles anything, and results are those of one trip after the other, to
# rounding.

# %%
for plan in (jafl.trip_by_trip(events), jafl.in_waves(events, 64), jafl.in_waves(events, 64, form="matrix")):
    print(plan)

# %% [markdown]
# How full waves are depends on how many clients train at once. That is why a federation of thousands suits a TPU,
# while one with twenty clients in flight does not:

# %%
widths = [1, 4, 16, 64, 256]
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for number, marker in ((in_flight, "o"), (max(1, in_flight // 10), "s"), (max(1, in_flight // 50), "^")):
    world = dict(num_clients=num_clients, concurrency=number, buffer_size=min(10, number))
    few = jafl.asynchronous(**world, client_trips=client_trips, delay=jafl.delays.log_normal(1.0))
    filled = [few.num_trips / len(jafl.in_waves(few, width).wave_before) for width in widths]
    axes.plot(widths, filled, marker=marker, label=f"{number:,} clients in flight")
axes.plot(widths, widths, color="black", linestyle="--", linewidth=1, label="full waves")
axes.set(
    xscale="log", yscale="log", xlabel="width of a wave (trips at most)", ylabel="trips in a wave, on average"
)
axes.set_xticks(widths, widths)
axes.set_yticks(widths, widths)
axes.minorticks_off()
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# The **matrix form** goes one step further. Under a linear rule (FedBuff, FedStaleWeight and others, with SGD or
# momentum on the server) each new version is a known linear combination of the old ones and of a wave's updates.
# One product of matrices then makes all versions of a wave, in place of a chain of small steps. On a TPU jafl uses
# it by itself where it is quicker; on a CPU the loop is.
#
# ## Precision
#
# jafl multiplies in float32 on every platform, which a TPU does in several passes. Two settings make it quicker:
# `matmul_precision="bfloat16"` rounds the factors of products on a TPU (and does nothing on a CPU), and
# `compute_dtype="bfloat16"` computes the whole local training in 16 bits, on every platform. Parameters and updates
# stay in float32. What it costs in accuracy can be measured here:

# %% tags=["clock"]
in_16_bits = dataclasses.replace(model, compute_dtype="bfloat16")
work_in_16_bits = jafl.client_work(in_16_bits, learning_rate=0.05, local_epochs=1, batch_size=10)
float32 = jafl.simulate(**run._asdict())
bfloat16 = jafl.simulate(**run._replace(client_work=work_in_16_bits)._asdict())

# %%
for name, history in {"float32": float32, "bfloat16": bfloat16}.items():
    print(f"{name:8} {history.evaluations[-1]['test_accuracy']:.4f}")
jafl.plots.accuracy({"float32": float32, "bfloat16": bfloat16}, scale="linear")

# %% [markdown]
# The two curves lie on each other. For deeper models they need not; [precision.md](../docs/precision.md) has what
# was measured.
#
# ## The whole comparison in one program
#
# In the matrix form the rule, the buffer size and the server's optimizer are data of the program, like learning
# rates and seeds. So four arms times four rates, sixteen runs, are *one* compiled program that trains them side by
# side.

# %% tags=["clock"]
arms = {
    "FedBuff, K = 10": (jafl.rules.fedbuff(), 10, 0.0),
    "FedBuff, K = 100": (jafl.rules.fedbuff(), 100, 0.0),
    "FedStaleWeight, K = 10": (jafl.rules.fedstaleweight(), 10, 0.0),
    "FedBuff, K = 10, momentum": (jafl.rules.fedbuff(), 10, 0.9),
}
schedules = {buffer_size: schedule(buffer_size) for buffer_size in (10, 100)}
runs = [
    run._replace(
        schedule=schedules[buffer_size],
        rule=rule,
        server_optimizer=jafl.specify(optax.sgd, learning_rate=rate * (1 - momentum), momentum=momentum),
        evaluate_at=np.linspace(0, schedules[buffer_size].num_steps, 21).astype(int).tolist(),
    )
    for rule, buffer_size, momentum in arms.values()
    for rate in rates
]
histories = jafl.simulate_many(runs, form="matrix")

# %%
reached = np.array([history.evaluations[-1]["test_accuracy"] for history in histories]).reshape(
    len(arms), len(rates)
)
jafl.plots.heat_maps({"": reached}, rows=("arm", list(arms)), columns=("server's learning rate", rates))

# %%
best = {arm: histories[len(rates) * row + int(reached[row].argmax())] for row, arm in enumerate(arms)}
jafl.plots.accuracy(best, horizontal="time", scale="linear")

# %% [markdown]
# Read the map by rows. FedStaleWeight and the arm with momentum have their best rate inside the range. The best
# rate of FedBuff without momentum lies at its edge, so its search is not over: add a higher rate before you judge.
# The curves are those of the best rates, over simulated time. Each is of one seed, so take them as an example of
# how to ask, and not as an answer. Seeds are numbers, too: add them to the list, and they train in the same
# program.
#
# On a CPU the same runs take less time one after the other in the loop form (`jafl.simulate(**run._asdict())`),
# which jafl prefers there. On a TPU a small model's step costs almost nothing, and what counts is how much is done
# at once. [design.md](../docs/design.md#the-matrix-form) explains how the matrix form works, and for which rules.
#
# **Next:** [reading a schedule before training](5_reading_a_schedule.ipynb).
