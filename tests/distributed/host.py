"""One process of several that run ``jafl.simulate`` together: ``python host.py JSON``; it writes what it found."""

import hashlib
import json
import os
import pathlib
import sys

ASKED = json.loads(sys.argv[1]) if __name__ == "__main__" else {"devices": 1}
if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ASKED['devices']}"

import jax  # noqa: E402  (the environment comes first)
import numpy as np  # noqa: E402

import jafl  # noqa: E402

# Rule, form of the plan, whether examples and clients' memory are in parts.
CASES = {
    "fedbuff": ("fedbuff", None, False),
    "fedbuff, matrix, in parts": ("fedbuff", "matrix", True),
    "ace, loop, in parts": ("ace", "loop", True),
    "ace, matrix, in parts": ("ace", "matrix", True),
    "wkafl, in parts": ("wkafl", None, True),
    "fedbuff, ends by itself": ("fedbuff", None, True),
}
# The loss on test examples rises after four server steps for a while: the labels are random.
ENDS_BY_ITSELF = {
    "evaluate_at": range(0, 40, 4),
    "stop_when": "test_loss stalls 2",
    "keep_best": "test_loss",
    "evaluate_clients": True,
}
STEPS = 40


def simulate(name, *, seed=0, start=0.1, noise=0.0, **options):
    """The history of one of ``CASES``; ``start`` is the scale of the initial model, ``noise`` of private runs."""
    rule, form, _ = CASES[name]
    given = getattr(jafl.rules, rule)()
    if noise:
        given = jafl.private(given, clip_norm=1.0, delta=1e-3, noise_multiplier=noise, mechanism="tree")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(999, 12)), random.integers(0, 5, 999)
    federation = jafl.Federation.from_arrays(
        x, y, jafl.data.dirichlet(y, 50, alpha=0.5, seed=0), test_x=x[:40], test_y=y[:40], num_classes=5
    )
    built = getattr(jafl.rules, rule)().build()
    schedule = jafl.asynchronous(
        num_clients=50,
        concurrency=50 if built.initial_round else 20,
        buffer_size=built.buffer_size or 8,
        delay=jafl.delays.exponential(1.0),
        server_steps=STEPS,
        initial_round=built.initial_round,
        seed=seed,
    )
    model = jafl.models.mlp(5, (16,))
    personal = jafl.ditto(0.5, 0.2) if name.endswith("ends by itself") else None
    work = jafl.client_work(model, learning_rate=0.1, batch_size=8, local_steps=2, personal=personal)
    asked = ENDS_BY_ITSELF if name.endswith("ends by itself") else {"evaluate_at": [15]}
    options = {**asked, "progress": False, "form": form, **options}
    # By NumPy: the bits of what JAX initializes depend on how its program is compiled.
    shapes = model.init(jax.random.key(0), x[:1])
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape) * start, shapes)
    return jafl.simulate(schedule, federation, work, given, params, jax.random.key(1), **options)


def in_parts(name):
    """Whether a case holds large arrays in parts; they are small here, so the threshold is lowered."""
    from jafl.engine.plan import make_program

    make_program.LARGE_SHARE_OF_MEMORY = 1e-9 if CASES[name][2] else 1 / 16


def many_clients(examples):
    """A federation of 660,120 clients, whose examples stay on the disk until somebody reads them."""
    x = np.load(examples, mmap_mode="r")
    y = (np.arange(len(x)) % 2).astype(np.int32)
    clients = 660_120
    partition = jafl.Partition(
        offsets=np.linspace(0, len(x), clients + 1).astype(int), indices=np.arange(len(x))
    )
    return jafl.Federation.from_arrays(x, y, partition, test_x=np.array(x[:64]), test_y=y[:64], num_classes=2)


def train_many_clients(examples):
    """The history of FedBuff with 660,120 clients."""
    federation = many_clients(examples)
    schedule = jafl.asynchronous(
        num_clients=federation.num_clients,
        concurrency=1000,
        buffer_size=10,
        delay=jafl.delays.half_normal(),
        server_steps=50,
    )
    model = jafl.models.softmax(2)
    work = jafl.client_work(model, learning_rate=0.1, batch_size=2, local_steps=1)
    params = model.init(jax.random.key(0), federation.test_x[:1])
    plan = jafl.in_waves(schedule, 16)
    return jafl.simulate(
        schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1), plan=plan, progress=False
    )


def found_in(history):
    """What a process tells of a history."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(history.params)]
    return {
        "digest": hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest(),
        "evaluations": history.evaluations,
        "losses": np.asarray(history.trip_reports["loss"]).tolist(),
        "steps": history.server_steps,
        "best": [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(history.best_params)],
        "of clients": {name: rows.tolist() for name, rows in (history.client_metrics or {}).items()},
    }


def main():
    """Does what was asked for, and writes it to ``said-N.json``; the first process writes the parameters, too."""
    number, count, folder = ASKED["number"], ASKED["count"], pathlib.Path(ASKED["folder"])
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(
        f"127.0.0.1:{ASKED['port']}",
        count,
        number,
        initialization_timeout=ASKED["limit"],
        heartbeat_timeout_seconds=100,
        shutdown_timeout_seconds=ASKED["limit"],
    )
    said = {}
    for name in ASKED.get("cases", []):
        in_parts(name)
        options = {}
        if "stop" in ASKED:  # the last process is the one that is asked to stop
            reached = [0]
            options = {
                "checkpoints": jafl.Checkpoints(ASKED["checkpoints"], every=100),
                "on_progress": lambda step, reached=reached: reached.__setitem__(0, step),
                "should_stop": lambda reached=reached: number == count - 1 and reached[0] >= ASKED["stop"],
            }
        history = simulate(name, **options)
        said[name] = found_in(history)
        if number == 0:
            leaves = jax.tree.leaves(history.params)
            np.savez(folder / f"{name}.npz", *[np.asarray(leaf) for leaf in leaves])
    for name in ASKED.get("private", []):
        said[name] = found_in(simulate("fedbuff", noise=1.0))
    if ASKED.get("refused"):
        cases = {
            "another seed": {"seed": number},
            "one device": {"devices": 1},
            "not finite": {"start": np.nan if number else 0.1},
        }
        for name, options in cases.items():
            try:
                simulate("fedbuff", **options)
            except jafl.SettingError as error:
                said[name] = str(error)
    if "examples" in ASKED:
        in_parts("ace, loop, in parts")
        said["many clients"] = found_in(train_many_clients(ASKED["examples"]))
        # Not getrusage's: that also counts the process that started this one.
        status = pathlib.Path("/proc/self/status").read_text()
        said["bytes"] = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    (folder / f"said-{number}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
