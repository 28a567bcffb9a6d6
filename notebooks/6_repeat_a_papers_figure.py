# %% [markdown]
# # 6. Repeat a paper's figure, and read its verdict
#
# **What you learn here:** how to run one of the papers' experiments, what its table and pictures hold, and how to
# read a verdict: *seen*, *reversed* or *a tie*.
#
# Papers on asynchronous federated learning compare their rule with others in a figure or a table. The repository
# repeats more than twenty of them with one command each, with equal tuning for all rules and with intervals over
# seeds. We take figure 2 of FedStaleWeight (Ma et al. 2024): 15 clients, of which five are slow and alone hold four
# of the labels.

# %% tags=["sizes"]
options = ""  # for example "--seed=0,1,2"; nothing: ten seeds, as the experiment's file says

# %% [markdown]
# The experiments are files of the repository, not of the installed package. This finds the checkout that jafl comes
# from, and fetches one where there is none.

# %%
import importlib.metadata
import json
import pathlib
import subprocess
import sys

import jafl
from IPython.display import Image, Markdown, display

repository = pathlib.Path(jafl.__file__).resolve().parents[1]
if not (repository / "run.py").is_file():
    links = importlib.metadata.metadata("jafl").get_all("Project-URL") or []
    addresses = [link.split(", ")[1] for link in links if link.startswith("Repository")]
    repository = pathlib.Path("jafl-repository").resolve()
    if not repository.exists():
        subprocess.run(["git", "clone", "--quiet", "--depth=1", addresses[0], repository], check=True)

# %% tags=["clock"]
# !cd {repository} && {sys.executable} run.py experiment list

# %% [markdown]
# Each is one file with one record: the arms, the conditions, the seeds, what the paper published, and the claims
# that it makes. This is the docstring of ours. It says what the paper leaves open, and what we chose:

# %%
file = repository / "experiments" / "papers" / "fedstaleweight" / "fedstaleweight_fig2.py"
print(file.read_text().split('"""')[1])

# %% [markdown]
# ## Run it
#
# The desk size needs no download: MNIST-1D in place of FashionMNIST. Seven rules, two lengths, twenty seeds: 280
# runs in a few minutes. `--scale=paper` is the published size. `--tune` searches for the rates first, with the
# same number of trials for each rule; without it, rates are those that stand in the file, or jafl's own.

# %% tags=["clock"]
results = pathlib.Path("fedstaleweight_fig2").resolve()
# !cd {repository} && {sys.executable} run.py experiment fedstaleweight_fig2 --output_dir={results} {options}

# %% [markdown]
# ## What it leaves
#
# `table.md` has everything in one page: what was measured, the claims, what was published, and how the rates were
# found.

# %%
table = (results / "table.md").read_text()
Markdown(table.split("## How")[0].replace("\n# ", "\n### ").replace("\n## ", "\n#### "))

# %% [markdown]
# The figure itself is a picture of curves: 400 and 1,000 steps, each with its own rates.

# %%
for picture in sorted((results / "runs").rglob("accuracy.png")):
    display(Image(picture.read_bytes()))

# %% [markdown]
# ## Read the verdicts
#
# A claim of the paper is a sentence with two arms. Both are trained with the same seeds, so their difference is
# taken seed by seed. The interval in brackets is a 95 % interval over these differences, corrected for the examples
# that the seeds' test sets share.

# %%
judged = json.loads((results / "verdicts.json").read_text())["verdicts"]
for row in judged:
    interval = f"{row['low']:+.3f} to {row['high']:+.3f}"
    print(f"{row['verdict']:9} {row['difference']:+.3f} ({interval})  {row['claim']}, {row['condition']}")

# %% [markdown]
# * **Better**, **worse**: the interval lies above, or below, zero. Chance alone hardly gives such a difference.
# * **Equivalent**: the difference is less than a margin that the file states beforehand, .01 here.
# * **Undecided**: neither. That is *not* the same as "no difference". It says that these seeds cannot tell.
#
# [The protocol](../docs/protocol.md) says how each verdict is reached. Files from before it say *seen*, *reversed*
# and *a tie* instead, which rest on one split of the data.
#
# Three things to keep in mind. First, a verdict is about *this* world: desk size, MNIST-1D, one model. Second,
# several claims are judged at once, each with 95 %, so once in a while one is seen by chance. Third, equal tuning
# changes orders: some published leads vanish as soon as every rule has its own rate.
# [experiments/README.md](../experiments/README.md) has the results of all experiments, with the claims that we have
# *not* seen, and why.
#
# ## Your own question
#
# The same machinery answers it. Put another number in the place of a setting, and the claims are judged again:
#
#     python run.py experiment fedstaleweight_fig2 --seed=0,1,2 --buffer_size=10
#
# Or write an experiment of your own: one file in `experiments/papers/`, for which [BUILD.md](../BUILD.md) has a
# checklist.
