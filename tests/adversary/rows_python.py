"""Rows for jafl's public functions: a call with a bad argument, and words of the SettingError, in their order."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jafl

CONSTANT = jafl.delays.constant(1.0)
LABELS = np.array([0, 0, 1, 1, 2, 2])
X, Y = np.ones((6, 4), np.float32), LABELS
FEDERATION = jafl.Federation.from_arrays(X, Y, jafl.data.iid(Y, 2, seed=0), test_x=X, test_y=Y)
MODEL = jafl.models.softmax(3)
WORK = jafl.client_work(MODEL, learning_rate=0.1, local_steps=1)
KEY = jax.random.key(0)
PARAMS = MODEL.init(KEY, X)


def asynchronous(**changes):
    arguments = {"num_clients": 2, "concurrency": 1, "buffer_size": 1, "delay": CONSTANT, "server_steps": 3}
    return lambda: jafl.asynchronous(**{**arguments, **changes})


def synchronous(**changes):
    arguments = {"num_clients": 4, "cohort_size": 2, "delay": CONSTANT, "server_steps": 3}
    return lambda: jafl.synchronous(**{**arguments, **changes})


def open_arrivals(**changes):
    arguments = {"num_clients": 4, "start_rate": 1.0, "delay": CONSTANT, "server_steps": 3}
    return lambda: jafl.open_arrivals(**{**arguments, **changes})


def drawn(**changes):
    arguments = {"num_clients": 4, "buffer_size": 2, "delay": CONSTANT, "server_steps": 3}
    return lambda: jafl.drawn_staleness(**{**arguments, **changes})


def work(**changes):
    return lambda: jafl.client_work(**{"model": MODEL, "learning_rate": 0.1, **changes})


def simulate(**changes):
    arguments = {
        "schedule": asynchronous()(),
        "federation": FEDERATION,
        "client_work": WORK,
        "rule": jafl.rules.fedbuff(),
        "params": PARAMS,
        "key": KEY,
    }
    return lambda: jafl.simulate(**{**arguments, **changes})


def federation(**changes):
    arguments = {"x": X, "y": Y, "partition": FEDERATION.partition, "test_x": X, "test_y": Y}
    return lambda: jafl.Federation.from_arrays(**{**arguments, **changes})


def masked(values):
    return np.ma.array(values, mask=np.arange(np.size(values)).reshape(np.shape(values)) == 0)


def modelled(module=None, **changes):
    model = jafl.Model(module or MODEL.module, **changes)
    return simulate(client_work=jafl.client_work(model, learning_rate=0.1))


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("cache", "calls", jnp.zeros, ())
        return nn.Dense(3)(x)


def by_numpy(leaf):
    return leaf + np.random.normal()


def optimizer(change):
    def update(updates, state, params=None):
        return jax.tree.map(change, updates), state

    return optax.GradientTransformation(lambda params: (), update)


def changed_rule(part, change):
    built = jafl.rules.fedbuff().build()

    def changed(*arguments):
        floats = lambda leaf: change(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf  # noqa: E731
        return jax.tree.map(floats, getattr(built, part)(*arguments))

    return built._replace(**{part: changed})


def reporting(report):
    built = jafl.rules.fedbuff().build()
    return simulate(rule=built._replace(fold=lambda *given: (built.fold(*given)[0], report)))


def looked_up(**changes):
    """A model that looks up the whole numbers of its examples in a table of four rows."""
    model = jafl.Model((lambda key: np.ones((4, 3), np.float32), lambda params, x: params[x].mean(axis=1)))
    examples = {name: np.arange(24).reshape(6, 4) % 4 for name in ("x", "test_x")} | changes
    y = np.arange(6) % 3
    federation = jafl.Federation.from_arrays(y=y, partition=jafl.data.iid(y, 2, seed=0), test_y=y, **examples)
    work = jafl.client_work(model, learning_rate=0.1)
    return simulate(client_work=work, federation=federation, params=np.ones((4, 3), np.float32))


def private(**options):
    rule = jafl.private(jafl.rules.fedbuff(), clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    return simulate(rule=rule, **options)


def freeze(which):
    return lambda: MODEL.freeze(PARAMS, which)


def outputs(function, y=LABELS, **options):
    model = jafl.Model(
        (lambda key: np.ones(4, np.float32), lambda params, x: function(params * x)), **options
    )
    federation = jafl.Federation.from_arrays(X, y, jafl.data.iid(y, 2, seed=0), test_x=X, test_y=y)
    work = jafl.client_work(model, learning_rate=0.1)
    return simulate(client_work=work, federation=federation, params=np.ones(4, np.float32))


def several(**options):
    return outputs(lambda x: (x[:, :3], x), **options)


def present(law, time):
    return lambda: law.prepare(num_clients=2, seed=0).next_available(0, time)


ROWS = {
    # Schedules
    "clients in text": (asynchronous(num_clients="2"), "num_clients is '2' ... a whole number"),
    "clients in fractions": (asynchronous(num_clients=2.5), "num_clients is 2.5 ... a whole number"),
    "concurrency in fractions": (asynchronous(concurrency=1.5), "concurrency is 1.5"),
    "buffer True": (asynchronous(buffer_size=True), "buffer_size is True ... a whole number"),
    "delay a number": (asynchronous(delay=1.0), "delay is 1.0 ... a law of jafl.delays"),
    "delay a class": (asynchronous(delay=jafl.delays.constant), "delay is ... a law of jafl.delays"),
    "steps 1.5": (asynchronous(server_steps=1.5), "server_steps is 1.5 ... a whole number"),
    "steps beyond 32 bits": (asynchronous(server_steps=2**31), "server_steps is 2147483648 ... below 2**31"),
    "trips beyond 32 bits": (
        asynchronous(num_clients=2**20, concurrency=2**10, buffer_size=2**10, server_steps=2**21),
        "server_steps is 2097152 ... below 2**31 trips, not 2,097,152 server steps of 1,024 ... Lower server_steps or buffer_size",
    ),
    "restart": (asynchronous(restart="later"), "restart is 'later' ... one of"),
    "too stale": (asynchronous(staleness_limit=1, too_stale="wate"), "too_stale is 'wate' ... 'wait'"),
    "wait without a limit": (asynchronous(too_stale="wait"), "staleness_limit is None ... given where too_stale"),
    "limit below 0": (asynchronous(staleness_limit=-1), "staleness_limit is -1 ... at least 0"),
    "flush 0": (asynchronous(flush_after=0.0), "flush_after is 0.0 ... above 0"),
    "failure 1": (asynchronous(failure_rate=1.0), "failure_rate is 1.0 ... below 1"),
    "seed text": (asynchronous(seed="0"), "seed is '0' ... a whole number"),
    "initial round of some": (asynchronous(initial_round=True), "concurrency is 1 ... for an initial round"),
    "day 1e-300": (
        lambda: jafl.availability.diurnal(day_length=1e-300),
        "the availability's day_length is 1e-300 ... from 1e-100 to",
    ),
    "over_selection 9": (synchronous(over_selection=9.0), "over_selection is 9.0 ... at most 1"),
    "over_selection 1e308": (synchronous(over_selection=1e308), "over_selection is 1e+308 ... at most 1"),
    "deadline before every trip": (synchronous(deadline=0.5), "deadline is 0.5 ... the shortest trip of these"),
    "min_reports True": (synchronous(min_reports=True), "min_reports is True ... a whole number"),
    "participation nan": (synchronous(cohort_size=None, participation=[0.1, 0.2, float("nan"), 1]), "participation of client 2 is nan"),
    "participation text": (synchronous(cohort_size=None, participation="0.5"), "participation.dtype is ... a type of numbers, not texts"),
    "participation and poisson": (synchronous(cohort_size=None, participation=0.5, cohorts="poisson"), "cohorts is 'poisson' ... left out where participation"),
    "poisson with failures": (synchronous(cohorts="poisson", failure_rate=0.5), "failure_rate is 0.5 ... left out where cohorts"),
    "poisson with a deadline": (synchronous(cohorts="poisson", deadline=2.0), "deadline is 2.0 ... left out where cohorts"),
    "poisson with min_reports": (synchronous(cohorts="poisson", min_reports=2), "min_reports is ... left out where cohorts"),
    "rounds of those who have left": (synchronous(dropout=jafl.Dropout(fraction=1.0, server_step=1)), "starves in server step 1 ... 4 have left"),
    "most trips 0": (asynchronous(most_trips=0), "most_trips is 0 ... at least 1"),
    "most trips 1.5": (synchronous(most_trips=1.5), "most_trips is 1.5 ... a whole number"),
    "gap -1": (asynchronous(smallest_gap=-1), "smallest_gap is -1 ... at least 0"),
    "gap None": (drawn(smallest_gap=None), "smallest_gap is None ... a whole number"),
    "one pass that is too short": (asynchronous(most_trips=1, server_steps=9), "2 have made all their trips ... Raise most_trips"),
    "rounds of nobody new": (synchronous(most_trips=1, server_steps=9), "4 have made all their trips ... raise most_trips"),
    "gap above the clients": (drawn(smallest_gap=9, server_steps=9), "must wait for further server steps ... lower smallest_gap"),
    "gap with replacement": (open_arrivals(exclude_busy=False, smallest_gap=1), "smallest_gap is 1 ... left out where exclude_busy"),
    "cohorts": (synchronous(cohorts="Poisson"), "cohorts is 'Poisson' ... one of fixed, poisson"),
    "poisson, over-selected": (synchronous(cohorts="poisson", over_selection=0.5), "over_selection is 0.5 ... left out where cohorts is 'poisson' ... amplification"),
    "poisson, one pass": (synchronous(cohorts="poisson", most_trips=1), "most_trips is 1 ... left out where cohorts"),
    "nobody at all": (synchronous(num_clients=10_000, cohort_size=1, cohorts="poisson", server_steps=1, seed=1), "cohort_size is 1 ... in 1 round no client took part"),
    "divide by 0": (simulate(rule=jafl.rules.fedavg(divide_by=0.0)), "divide_by is 0.0 ... above 0"),
    "divide by and examples": (lambda: jafl.rules.fedavg(True, divide_by=2.0).build(), "weigh_by_examples is True ... False where divide_by"),
    "rate 0": (open_arrivals(start_rate=0.0), "start_rate is 0.0 ... above 0"),
    "rate 1e12": (open_arrivals(start_rate=1e12), "start_rate is 1000000000000.0 ... at most about"),
    "starts": (open_arrivals(starts="often"), "starts is 'often' ... one of constant, poisson"),
    "restart of open arrivals": (open_arrivals(restart="after_step"), "restart is 'after_step' ... one of"),
    "drawn buffer 5": (drawn(buffer_size=5), "buffer_size is 5 ... the number of clients, 4"),
    "due of 2": (drawn(reports="due"), "buffer_size is 2 ... left out where reports is 'due'"),
    "due with a gap": (drawn(reports="due", buffer_size=None, smallest_gap=2), "smallest_gap is 2 ... left out"),
    "due once": (drawn(reports="due", buffer_size=None, most_trips=1), "most_trips is 1 ... left out where"),
    "reports by number": (drawn(reports=3), "reports is 3 ... one of due"),
    "due trips 3": (
        drawn(reports="due", buffer_size=None, server_steps=None, client_trips=3),
        "client_trips is 3 ... at least 4, the trips of the first server step",
    ),
    "due below 0": (drawn(reports="due", buffer_size=None, delay=jafl.delays.from_function(lambda client, trip: -1.0)), "the delay of client 0, trip 0 is -1.0"),
    "due without clients": (drawn(reports="due", buffer_size=None, num_clients=0), "num_clients is 0 ... at least 1"),
    "drawn trips 1": (drawn(server_steps=None, client_trips=1), "client_trips is 1 ... at least 2"),
    # Delays and presence
    "gamma shape -1": (lambda: jafl.delays.gamma(1.0, -1.0), "the delay's shape is -1.0 ... above 0"),
    "day -1": (lambda: jafl.availability.diurnal(day_length=-1.0), "the availability's day_length is -1.0 ... above 0"),
    "on and off 1e-90": (present(jafl.availability.on_and_off(1e-90, 1e-90), 1.0), "mean_on is 1e-90 ... come and go"),
    "windows overlap": (present(jafl.availability.windows([0, 2, 3], [0, 1, 0], [2, 3, 1]), 0.0), "the windows of client 0"),
    "dropout of nobody": (lambda: jafl.Dropout(time=1.0), "the dropout's fraction, clients ... exactly one of them"),
    "fraction never": (lambda: jafl.dropout.fraction(0.1), "the dropout's server_step, time, trips ... exactly one of them"),
    "fraction twice": (lambda: jafl.dropout.fraction(0.1, time=1.0, trips=2), "the dropout's server_step, time, trips ... exactly one of them"),
    "fraction 2": (lambda: jafl.dropout.fraction(2.0, time=1.0), "the dropout's fraction is 2.0 ... at most 1"),
    "clients never": (lambda: jafl.dropout.clients([0]), "the dropout's server_step, time, trips ... exactly one of them"),
    "clients no list": (lambda: jafl.dropout.clients(3, trips=1), "the dropout's clients is 3 ... a list of client numbers"),
    "clients 9": (asynchronous(dropout=jafl.dropout.clients([9], time=1.0)), "a client of the dropout is 9 ... below the number of clients, 2"),
    "cycle_after 0": (lambda: jafl.read_availability("none.csv", cycle_after=0.0), "cycle_after is 0.0 ... above 0"),
    "cycle_after nan": (lambda: jafl.read_availability("none.csv", cycle_after=float("nan")), "cycle_after is nan ... a finite number"),
    "natural of digits": (lambda: jafl.data.natural(jafl.data.digits()), "partition is 'natural', but digits has no clients of its own"),
    "dropout never": (lambda: jafl.Dropout(fraction=0.1), "the dropout's server_step, time, trips ... exactly one of them"),
    "dropout fraction": (lambda: jafl.Dropout(fraction=2.0, time=1.0), "the dropout's fraction is 2.0 ... at most 1"),
    "dropout of client 9": (
        asynchronous(dropout=jafl.Dropout(clients=[9], time=1.0)),
        "a client of the dropout is 9 ... below the number of clients, 2",
    ),
    # Data
    "iid of many": (lambda: jafl.data.iid(LABELS, 9, seed=0), "num_clients is 9 ... at most 6, the number of examples"),
    "iid of fractions": (lambda: jafl.data.iid(LABELS / 2, 2, seed=0), "labels.dtype is 'float64' ... an integer type"),
    "iid seed -1": (lambda: jafl.data.iid(LABELS, 2, seed=-1), "seed is -1 ... at least 0"),
    "iid seed 2**32": (lambda: jafl.data.iid(LABELS, 2, seed=2**32), "seed is 4294967296 ... at most 4294967295"),
    "dirichlet 0": (lambda: jafl.data.dirichlet(LABELS, 2, alpha=0.0, seed=0), "alpha is 0.0 ... above 0"),
    "dirichlet nan": (lambda: jafl.data.dirichlet(LABELS, 2, alpha=float("nan"), seed=0), "alpha is nan ... above 0"),
    "groups no pair": (lambda: jafl.data.label_groups(LABELS, [3], seed=0), "groups[0] is 3 ... a pair"),
    "groups twice": (lambda: jafl.data.label_groups(LABELS, [(1, [0]), (1, [0])], seed=0), "is 0 ... owned only once"),
    "synthetic none": (lambda: jafl.data.synthetic(num_clients=0, alpha=1, beta=1), "num_clients is 0 ... at least 1"),
    "synthetic nan": (lambda: jafl.data.synthetic(num_clients=2, alpha=float("nan"), beta=1), "alpha is nan"),
    "synthetic 1e308": (lambda: jafl.data.synthetic(num_clients=2, alpha=1, beta=1e308), "beta is 1e+308 ... at most"),
    "digits test 1": (lambda: jafl.data.digits(test_fraction=1.0), "test_fraction is 1.0 ... below 1"),
    "server keeps all": (lambda: jafl.data.keep_for_server(jafl.data.digits(), 9999), "server_examples is 9999 ... at most"),
    "masked parameters": (simulate(params=jax.tree.map(masked, PARAMS)), "params is 'masked in 1 places'"),
    "records": (federation(x=np.zeros(6, [("a", "f4")])), "x.dtype ... not records ... Take a field"),
    "texts": (federation(y=np.where(Y > 0, "yes", "no")), "y.dtype ... not texts ... np.unique"),
    "numbers as texts": (federation(y=Y.astype(str)), "y.dtype ... not texts ... They stand for numbers"),
    "dates": (federation(x=Y.astype("M8[s]")), "x.dtype ... not dates"),
    "objects": (federation(x=X.astype(object)), "x.dtype is 'object' ... Python objects"),
    "ragged": (federation(x=[[1.0], [1.0, 2.0]]), "x cannot become an array ... lists of equal lengths"),
    "a duration": (lambda: jafl.delays.constant(np.timedelta64(5, "s")), "the delay's duration is np.timedelta64"),
    "labels apart": (federation(y=Y * 450_000), "largest label in y is 900000 ... num_classes=900001"),
    "other labels": (federation(y=Y[::-1]), "digest of the labels that the partition divides ... that of y"),
    "more examples": (federation(x=np.ones((8, 4)), y=np.arange(8) % 3), "number of examples that the partition divides is 6 ... 8"),
    "no classes": (lambda: jafl.models.softmax(0), "num_classes is 0 ... floats ... y.astype(np.int32)"),
    # Client work
    "work of no model": (work(model=jafl.rules.fedbuff()), "model is ... a jafl.Model"),
    "work without a rate": (work(learning_rate=None), "learning_rate and optimizer ... one given and one None"),
    "work with two rates": (work(optimizer=optax.sgd(0.1)), "learning_rate and optimizer ... one given and one None"),
    "work of rate -1": (work(learning_rate=-1.0), "learning_rate is -1.0 ... at least 0"),
    "work of rate nan": (work(learning_rate=float("nan")), "learning_rate is nan ... a finite number"),
    "work of no optimizer": (work(learning_rate=None, optimizer=3), "optimizer is 3 ... an optax optimizer"),
    "work of steps 0": (work(local_steps=0), "local_steps is 0 ... at least 1"),
    "work of epochs 1.5": (work(local_epochs=1.5), "local_epochs is 1.5 ... a whole number"),
    "work of both": (work(local_steps=1, local_epochs=1), "local_steps and local_epochs ... not both given"),
    "work of l2 nan": (work(l2=float("nan")), "l2 is nan ... a finite number"),
    "work of whole batches": (work(batch_size=0, learning_rate_normalization=True), "learning_rate_normalization is True"),
    "work of proximal true": (work(proximal=True), "proximal is True ... a finite number"),
    "work of lbfgs": (simulate(client_work=work(learning_rate=None, optimizer=optax.lbfgs())()), "optimizer is one of chain ... from a gradient ... value"),
    "server of plateaus": (simulate(server_optimizer=jafl.specify(optax.contrib.reduce_on_plateau)), "server_optimizer is reduce_on_plateau() ... value"),
    "server of two models": (simulate(server_optimizer=optax.contrib.schedule_free_sgd(0.1)), "server_optimizer ... schedule_free_eval_params"),
    "server of a rule": (simulate(server_optimizer=jafl.rules.fedbuff()), "factory returns ... an optax optimizer"),
    # Models, losses and metrics
    "loss of a mean": (modelled(loss_per_example=lambda o, y: jnp.mean(o)), "losses of 2 examples is () ... one number per example"),
    "loss in numpy": (modelled(loss_per_example=lambda o, y: np.abs(np.array(o)[:, 0])), "the loss is <lambda>, which asks for numbers while JAX traces it ... jax.numpy"),
    "metric in numpy": (modelled(metrics={"own": lambda o, y: np.array(o)[:, 0]}), "the metric 'own' is <lambda>, which asks for numbers ... jax.numpy"),
    "metric with an if": (modelled(metrics={"own": lambda o, y: y if o.sum() > 0 else y}), "the metric 'own' ... jnp.where"),
    "optimizer drawn by numpy": (simulate(client_work=jafl.client_work(MODEL, optimizer=optimizer(by_numpy))), "what optimizer computes ... Draw them by jax.random"),
    "server drawn by numpy": (simulate(server_optimizer=optimizer(by_numpy)), "what server_optimizer computes ... Draw them by jax.random"),
    "rule drawn by numpy": (simulate(rule=changed_rule("fold", by_numpy)), "what rule computes ... Draw them by jax.random"),
    "rule in numpy": (simulate(rule=changed_rule("finish", lambda leaf: np.array(leaf))), "rule is ... asks for numbers ... jax.numpy"),
    "report of two numbers": (reporting({"own": jnp.ones((2, 3))}), "trips' report 'own' is (2, 3) ... one number"),
    "loss drawn by numpy": (outputs(lambda x: by_numpy(x[:, :3])), "what model computes ... Draw them by jax.random"),
    "token 4 of 4": (looked_up(x=np.full((6, 4), 4)), "federation.x holds the token 4 (example 0) ... has no row"),
    "token of the test": (looked_up(test_x=np.full((6, 4), 9)), "federation.test_x holds the token 9 (example 0)"),
    "token -5": (looked_up(x=np.full((6, 4), -5)), "federation.x holds the token -5"),
    "private stop by training": (private(stop_when="train_loss<=1"), "stop_when is 'train_loss<=1' ... test_accuracy, test_loss. In a private run"),
    "private stop by clipping": (private(stop_when="clipped<=1"), "stop_when is 'clipped<=1' ... In a private run"),
    "private best by training": (private(keep_best="train_loss"), "keep_best is 'train_loss' ... In a private run"),
    "a cache": (lambda: jafl.Model(Counting()).init(KEY, X), "['cache', 'params'] ... clients keep no caches"),
    "batch statistics": (lambda: jafl.Model(nn.BatchNorm(use_running_average=True)).init(KEY, X), "batch_stats ... GroupNorm"),
    # Evaluators
    "evaluator beyond floats": (simulate(evaluators={"huge": lambda p: 10**400}), "the result of the evaluator 'huge' is '1000 ... a number"),
    # Models
    "freeze what is not there": (freeze("kernl"), "what to freeze is 'kernl' ... dense/bias"),
    "freeze all": (freeze("*"), "what to freeze is '*' ... Nothing would be trained"),
    "freeze nothing": (freeze(lambda path: False), "what to freeze ... some parameters"),
    "freeze by number": (freeze(3), "what to freeze is 3 ... a function of a path"),
    "freeze by a tree with more": (freeze({"dense": True, "other": False}), "a tree with other, which is no parameter"),
    "freeze a part of a tree": (freeze({"dense": {"bias": True}}), "a tree without dense/kernel ... a bool for each"),
    "frozen of another model": (
        lambda: jafl.Model(MODEL.module, frozen={"Dense_7": {"bias": np.ones(3)}}).init(KEY, X),
        "is 'Dense_7/bias' ... the path of a parameter",
    ),
    "frozen of another shape": (
        lambda: jafl.Model(MODEL.module, frozen={"dense": {"bias": np.ones(4)}}).init(KEY, X),
        "the shape of dense/bias is (4,) ... (3,)",
    ),
    "several outputs": (several(), "returns 2 outputs, [0, 1] ... output=0"),
    "output that is not there": (several(output=2), "output is 2 ... one of the model's outputs, [0, 1]"),
    "output of one array": (outputs(lambda x: x[:, :3], output="logits"), "output is 'logits' ... returns one array"),
    "binary of three labels": (outputs(lambda x: x[:, :1], task="binary"), "a label of y is 2 ... 0 or 1"),
    "binary of two logits": (
        outputs(lambda x: x[:, :2], y=LABELS % 2, task="binary"),
        "the shape of the model's output is (2,) ... one number for each example",
    ),
    "one logit of two classes": (outputs(lambda x: x[:, :1], y=LABELS % 2), 'is 1 ... task="binary"'),
    "labels -1 and 1": (lambda: jafl.Federation.from_arrays(X, 2 * (LABELS % 2) - 1, FEDERATION.partition, test_x=X, test_y=Y), "is -1 ... (y > 0)"),
    # Rules and specifications
    "private by name": (lambda: jafl.private("fedbuff", clip_norm=1.0, noise_multiplier=1.0, delta=1e-5), "rule is 'fedbuff' ... jafl.rules.fedbuff()"),
    "secure by name": (lambda: jafl.secure("fedbuff", clip_norm=1.0, fraction_bits=18), "rule is 'fedbuff' ... jafl.rules.fedbuff()"),
    "work as a rule": (simulate(rule=WORK), "rule is client_work ... must be a rule"),
    "a rule's number true": (lambda: jafl.rules.gsgm(momentum=True), "momentum of gsgm is True ... a number"),
    "exponent true": (lambda: jafl.rules.staleness.polynomial(True), "exponent of polynomial is True ... a number"),
    "decay true": (lambda: jafl.specify(optax.adam, 0.1, b1=np.True_), "b1 of adam is np.True_ ... a number"),
    "aggregate": (lambda: jafl.rules.fedbuff(aggregate="summ").build(), "aggregate is 'summ' ... one of mean, sum"),
    "memory precision": (
        simulate(
            rule=jafl.rules.ace(memory_precision="int9"),
            schedule=asynchronous(concurrency=2, initial_round=True)(),
        ),
        "memory_precision is 'int9' ... Did you mean 'int8'?",
    ),
    # Simulation
    "other clients": (simulate(schedule=asynchronous(num_clients=3)()), "3 ... 2"),
    "no work": (simulate(client_work=MODEL), "client_work is"),
    "no rule": (simulate(rule="fedbuff"), "rule is 'fedbuff'"),
    "parameters nan": (simulate(params=jax.tree.map(lambda a: a * float("nan"), PARAMS)), "parameters ... NaN"),
    "parameters of others": (simulate(params={"w": np.ones(3)}), "param"),
    "evaluate_at beyond": (simulate(evaluate_at=[99]), "evaluate_at"),
    "asgd of two": (
        simulate(rule=jafl.rules.asgd(), schedule=asynchronous(buffer_size=2)()),
        "buffer_size is 2 ... 1, the only number of trips per server step",
    ),
}  # fmt: skip
