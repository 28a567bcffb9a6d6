# %% [markdown]
# # 1. Ten lines to a picture
#
# **What you learn here:** what jafl simulates, the five things that a simulation is made of, and how to compare two
# algorithms fairly.
#
# In *asynchronous* federated learning nobody waits. Each client downloads the server's model, trains it on data of
# its own, and sends back what has changed. Quick clients return often, slow ones seldom, and when a slow one
# returns, the server has moved on: its update is *stale*. jafl works out first who trains when, and from which
# version of the model. Then it runs the whole story as one compiled JAX program.

# %% tags=["sizes"]
client_trips = 10_000  # one trip: a client downloads the model, trains it, and uploads what has changed

# %% [markdown]
# ## The ten lines
#
# 1,797 handwritten digits, divided unevenly among 100 clients. Twenty of them train at any moment, and the server
# makes a step whenever ten updates have arrived. The first run compiles for some seconds.

# %% tags=["clock"]
import jafl, jax

source = jafl.data.digits()
federation = jafl.federate(source, jafl.data.dirichlet(source.y, 100, alpha=0.3, seed=0))
world = dict(num_clients=100, concurrency=20, delay=jafl.delays.half_normal(1.0), client_trips=client_trips)
schedule = jafl.asynchronous(**world, buffer_size=10)
model = jafl.models.mlp(source.num_classes, hidden_sizes=[64])
work = jafl.client_work(model, learning_rate=0.3, local_epochs=1, batch_size=8)
params = model.init(jax.random.key(0), source.x)
history = jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))

# %%
jafl.plots.accuracy({"FedBuff": history}, target=0.95)

# %% [markdown]
# The vertical axis is logarithmic in the error, because everything that matters happens close to 1.
#
# ## What went in
#
# Each ingredient shows itself when it is the last value of a cell. The **federation** says who holds which
# examples. With `alpha=0.3` the clients are quite unlike each other:

# %%
federation

# %%
jafl.plots.label_split(federation.label_counts())

# %% [markdown]
# Each column is a client. Dark fields are the digits that it mostly has, and the grey bars above say how many
# examples it holds: some have a handful, some more than forty.
#
# The **schedule** says who trains when, and from which version of the model. It knows nothing of the data or the
# model, so you can look at it before anything is trained (notebook 5 does nothing else):

# %%
schedule

# %%
jafl.plots.timeline(schedule, until=4.0)

# %% [markdown]
# A row is a client, a bar is one trip, and a vertical line is a step of the server. Follow a bar from its left end
# to its right end and count the lines that it crosses: by so many steps has the model moved on since this client
# downloaded it. That is the staleness of its update, and the colour of the bar.
#
# The **model**, the **client work** (one epoch of SGD with batches of 8) and the **rule** are the other three:

# %%
model

# %%
jafl.rules.fedbuff()

# %% [markdown]
# ## What came out
#
# A history holds the evaluations, what every single trip reported, and the final parameters.

# %%
print(history)
history.evaluations[-1]

# %% [markdown]
# It can be saved and read back, and with pandas it becomes a table (`history.to_dataframe()`).
#
# ## A second algorithm
#
# FedAvg is synchronous: in each round ten clients start together, and the server waits for the slowest. Give both
# the same number of client trips, and look at the same curves over three different axes.

# %% tags=["clock"]
rounds = jafl.synchronous(num_clients=100, cohort_size=10, delay=world["delay"], client_trips=client_trips)
fedavg = jafl.simulate(rounds, federation, work, jafl.rules.fedavg(), params, jax.random.key(1))

# %%
jafl.plots.accuracy_panels({"FedBuff": history, "FedAvg": fedavg}, target=0.95)

# %% [markdown]
# Per server step and per client trip FedAvg is a little ahead at first: both average ten updates a step, and those
# of FedAvg are always fresh. Over simulated time FedBuff is several times quicker, because a round of FedAvg lasts
# as long as the slowest of its ten clients, and because ten clients train at a time where FedBuff keeps twenty
# busy. Which axis counts depends on what you pay for. Say which one you mean whenever you compare such algorithms.
#
# One seed proves nothing: [notebook 3](3_one_world_ten_rules.ipynb) repeats runs over seeds, and tunes the rules
# first.
#
# **Next:** [your own data, model, rule, delay and metric](2_your_own_everything.ipynb).
