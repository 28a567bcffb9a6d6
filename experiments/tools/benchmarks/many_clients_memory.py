"""Host memory and time of 660,120 clients: Sentiment140's size, through the real builder, reader and cache.

    python -m experiments.tools.benchmarks.many_clients_memory

Generates an archive in Sentiment140's format with 825,150 users, of whom 660,120 train, prepares it with
tensorflow-datasets' true builder, reads it, keeps it decoded, and trains one FedBuff run of 10,000 client trips
(K = 10, 1,000 in flight, half-normal delays) of softmax regression on word counts. Each stage is a process of its
own; its largest resident memory and its time are printed: 8 GiB is the bound.
"""

import contextlib
import csv
import io
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any

import numpy as np
from absl import app, flags, logging

USERS = flags.DEFINE_integer(
    "many_users", 825_150, "Users generated; four fifths of them train.", lower_bound=10
)
TRIPS = flags.DEFINE_integer("many_trips", 10_000, "Client trips of the FedBuff run.", lower_bound=100)
FOLDER = flags.DEFINE_string(
    "many_folder", None, "Where the data set lies. Default: a folder that is removed."
)
STAGE = flags.DEFINE_string("many_stage", None, "Only this stage: generate, prepare, decode, train.")
STAGES = ("generate", "prepare", "decode", "train")
BOUND = 8 * 2**30
ARCHIVE = "trainingandtestdata.zip"
FILES = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
WORDS = 40_000


def generate(folder: pathlib.Path) -> None:
    """Writes an archive with a tweet for every user, and as many again by users drawn with a power law.

    A tweet is positive if its words are, mostly: words of even rank are.
    """
    rng = np.random.default_rng(0)
    users = USERS.value
    tweeting = rng.permutation(
        np.concatenate([np.arange(users), (users * rng.random(users) ** 3).astype(np.int64)])
    )
    vocabulary = np.array([f"w{number}{'ab'[number % 2]}" for number in range(WORDS)])
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, authors in zip(FILES, (tweeting[:-498], tweeting[-498:]), strict=True):
            with archive.open(name, "w") as binary, io.TextIOWrapper(binary, "latin-1", newline="") as text:
                writer = csv.writer(text, quoting=csv.QUOTE_ALL)
                for start in range(0, len(authors), 10_000):
                    chunk = authors[start : start + 10_000]
                    mood = rng.integers(0, 2, len(chunk))
                    ranks = (WORDS * rng.random((len(chunk), 14)) ** 4).astype(np.int64) // 2 * 2
                    flipped = rng.random(ranks.shape) < 0.3
                    texts = vocabulary[ranks + (mood[:, None] ^ flipped)]
                    for number, (author, label, words) in enumerate(zip(chunk, mood, texts, strict=True)):
                        when, query = "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY"
                        row = (4 * label, start + number, when, query, f"user{author:07d}", " ".join(words))
                        writer.writerow(row)


def prepare(folder: pathlib.Path) -> None:
    """Runs tensorflow-datasets' builder on the archive, as ``run.py prepare sentiment140`` does."""
    import json

    from jafl import data
    from jafl.data.sources.prepared import tfds_builder
    from jafl.data.sources.preparing import kept_archive, registered_archives

    builder = tfds_builder("sentiment140", folder)
    ((url, info),) = registered_archives(builder).items()
    # Under the name of a finished download: the published archive's checksum would not be this one's.
    archive = kept_archive(builder, url, info, folder / "downloads")
    archive.parent.mkdir(parents=True, exist_ok=True)
    (folder / ARCHIVE).rename(archive)
    about = {"size": archive.stat().st_size, "checksum": info.checksum, "filename": info.filename}
    content = {
        "dataset_names": [builder.name],
        "urls": [url],
        "original_fname": info.filename,
        "url_info": about,
    }
    pathlib.Path(f"{archive}.INFO").write_text(json.dumps(content))
    data.prepare("sentiment140", folder)


def load(folder: pathlib.Path) -> Any:
    """The federation of the users that train."""
    from jafl import data

    source = data.sentiment140(data_dir=folder, validation_fraction=0.1)
    assert source.natural_partition is not None
    return data.federate(source, source.natural_partition)


def decode(folder: pathlib.Path) -> None:
    """The first start: reads every tweet and keeps its tokens."""
    federation = load(folder)
    print(f"  {federation.num_clients:,} clients train, {len(federation.y):,} tweets")


def bag_of_words() -> Any:
    """Logistic regression on the words of a tweet."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    import jafl

    class BagOfWords(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            vectors = nn.Embed(10_002, 2, embedding_init=nn.initializers.zeros)(tokens)
            return jnp.sum(vectors * (tokens > 0)[..., None], axis=1)

    return jafl.Model(BagOfWords())


def train(folder: pathlib.Path) -> None:
    """Later starts: opens the kept tokens and runs FedBuff."""
    import jax
    import optax

    import jafl

    before = time.perf_counter()
    federation = load(folder)
    print(f"  loaded {federation.num_clients:,} clients in {time.perf_counter() - before:.1f} s")
    schedule = jafl.asynchronous(
        num_clients=federation.num_clients,
        concurrency=min(1000, federation.num_clients),
        buffer_size=10,
        client_trips=TRIPS.value,
        delay=jafl.delays.half_normal(1.0),
    )
    model = bag_of_words()
    history = jafl.simulate(
        schedule,
        federation,
        jafl.client_work(model, learning_rate=0.3, local_epochs=1, batch_size=32),
        jafl.rules.fedbuff(),
        model.init(jax.random.key(0), federation.x),
        jax.random.key(1),
        server_optimizer=jafl.specify(optax.sgd, learning_rate=1.0),
        evaluate_at=[0, schedule.num_steps],
    )
    first, last = history.evaluations[0], history.evaluations[-1]
    print(
        f"  {history.schedule.num_trips:,} trips in {history.run_seconds:.1f} s; test accuracy "
        f"{first['test_accuracy']:.3f} -> {last['test_accuracy']:.3f}"
    )


def main(_: list[str]) -> None:
    """Runs all stages, each in its own process, or only one."""
    logging.set_verbosity(logging.WARNING)
    if STAGE.value and FOLDER.value:
        started = time.perf_counter()
        stages = {"generate": generate, "prepare": prepare, "decode": decode, "train": train}
        stages[STAGE.value](pathlib.Path(FOLDER.value))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"{STAGE.value:9} {time.perf_counter() - started:7.1f} s  {peak / 2**30:5.2f} GiB", flush=True)
        sys.exit(peak > BOUND)
    with contextlib.ExitStack() as stack:
        folder = FOLDER.value or stack.enter_context(tempfile.TemporaryDirectory())
        for stage in STAGES:
            options = [f"--many_folder={folder}", f"--many_stage={stage}"]
            options += [f"--many_users={USERS.value}", f"--many_trips={TRIPS.value}"]
            subprocess.run(
                [sys.executable, "-m", "experiments.tools.benchmarks.many_clients_memory", *options],
                check=True,
            )


if __name__ == "__main__":
    app.run(main)
