"""Tabulates jafl's algorithms from their docstrings, presets and requirements, in docs/algorithms.md.

python docs/algorithms.py            writes docs/algorithms.md
python docs/algorithms.py --check    fails if docs/algorithms.md is not what this script would write
"""

import inspect
import json
import os
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
VECTORS = ROOT / "conformance" / "vectors"
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402  (the repository is added above)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jafl import privacy, rules  # noqa: E402
from jafl.config.presets import ALGORITHMS, COMMON, PRESETS  # noqa: E402
from jafl.records import Requirements, Rule  # noqa: E402

# Arguments of rules that have no value for them by default.
ARGUMENTS: dict[str, dict[str, Any]] = {"zeno_plus_plus": {"server_gradient": lambda params: params}}
# {algorithm that is a rule with other settings: its paper}
COMBINATIONS = {
    "adamasfl": "Yan, Zhong, Wang and Zhang, ICML 2025",
    "ace_8bit": "Chang et al. 2025, appendix F.3.3",
    "aced_8bit": "Chang et al. 2025, appendix F.3.3",
    "async_diloco": "Liu et al. 2024",
    "diloco": "Douillard et al. 2023",
    "fedadagrad": "Reddi et al., ICLR 2021",
    "fedadam": "Reddi et al., ICLR 2021",
    "fedavgm": "Hsu, Qi and Brown 2019",
    "fedprox": "Li et al., MLSys 2020",
    "fedyogi": "Reddi et al., ICLR 2021",
    "rennala": "Tyurin and Richtárik, NeurIPS 2023",
    "rennala_without_stops": "Tyurin and Richtárik, NeurIPS 2023",
    "ringmaster": "Maranjyan, Tyurin and Richtárik, ICML 2025, algorithm 4",
    "ringmaster_with_stops": "Maranjyan, Tyurin and Richtárik, ICML 2025, algorithm 5",
}
RESTARTS = {
    "after_step": "K-asynchronous (clients start again together, with the step that has applied their trips)",
    "after_round": "asynchronous, in rounds of one trip of each client",
}
# Requirements that have a column, or words, of their own; others are named as they are.
KNOWN = ("needs_start", "buffer_size", "initial_round", "linear", "additive", "empty_steps", "correction")
EQUATION = re.compile(r"<-|direction is|model becomes|in proportion to| = ")
# A reference inside of a sentence.
REFERENCE = re.compile(r" ?\((?:[^()]*\b(?:19|20)\d\d\b|[^()]*\bpaper\b)[^()]*\)")
CITATION = re.compile(r"\(([^()]*\b(?:19|20)\d\d\b[^()]*)\)")
YEAR = re.compile(r",?\s*\b((?:19|20)\d\d)\b")
ENTRIES, CLIENTS = 7, 5  # of the small model, and who trains it

INTRODUCTION = """# Algorithms

Every rule of `jafl.rules` with its paper, its equation, the protocol of its preset (what `run.py --algorithm=NAME`
takes if nothing else is asked for; a rule also runs on any other schedule that has what it needs), what has to be
kept between two trips, and what it can be combined with. `python docs/algorithms.py` writes this page from the
docstrings, presets and requirements; a test fails while it is out of date. [The docstrings](../jafl/rules/) say more:
options, readings, departures from the paper.

In equations w is the server's model, y one that a client has trained, update = trained minus downloaded model, g a
gradient, eta a learning rate, K the number of trips in a server step, N that of all clients. The *direction* is what
plain SGD adds to the model, times the server's learning rate; the server's optimizer gets it with the opposite sign,
as a gradient. [Words](words.md) has the others.
"""

CAPABILITIES = """## What they keep, and what they allow

- *Clients keep*, *the server keeps*: from one trip to the next, beside the current model, and beside what the
  server's optimizer keeps (nothing for SGD, momentum, moments). "Downloaded models" are the versions from which trips
  under way have started; a stored value is of a client's last updates, gradients or model.
- *Linear*: direction and state are linear in the updates. Such a rule has the
  [matrix form](design.md#the-matrix-form), and the server's error can be decomposed. FedAsync, FedAT, FAVAS,
  QuAFL and FedFa's mean of models mix downloaded models in; SCAFFOLD, FedDyn, MasFL and EF21 read what clients keep.
  They have the matrix form alone.
- *Additive*: a step's buffer is a sum, which several devices can share.
- *Private*: [jafl.private](privacy.md) can state its ε. *Secure*: the sum can be made by
  [secure aggregation](privacy.md#secure-aggregation).
- *Vectors*: small problems with known answers, [for other simulators, too](../conformance/README.md).

All with the rules' default arguments.
"""

COMBINED = """## Combinations

Algorithms that are one of these rules with other settings. The learning rates of all are
[from one search](../experiments/tools/benchmarks/README.md#default-learning-rates). Beside any
rule clients can train [models of their own](how_to.md#give-each-client-a-model-of-its-own): Ditto
(Li, Hu, Beirami and Smith, ICML 2021), v\\_i ← v\\_i - η (g(v\\_i) + λ (v\\_i - x)).
"""


def citation(rule: str) -> tuple[str, str]:
    """(paper, year) of a rule, from the first line of its module's docstring.

    Raises:
      ValueError: for one that does not end with them.
    """
    module = inspect.getmodule(inspect.unwrap(rules.RULES[rule]))
    line = (inspect.getdoc(module) or "").partition("\n")[0]
    found = CITATION.findall(line)
    if not found:
        raise ValueError(
            f"the first line of {module.__name__} must end with its source and the year in brackets, as "  # type: ignore[union-attr]
            f"(Nguyen et al., AISTATS 2022, algorithm 1), but is: {line}"
        )
    return YEAR.sub("", found[-1], count=1), YEAR.search(found[-1])[1]  # type: ignore[index]


def equation(rule: str) -> str:
    """The first sentence of a rule's docstring with an equation, and those of its paragraph that say what w becomes.

    The summary where none has an equation.
    """
    text = (inspect.getdoc(rules.RULES[rule]) or "").partition("\nArgs:")[0]
    paragraphs = [
        re.split(r"(?<=[^.]\.)(?<!et al\.)\s+", paragraph.strip()) for paragraph in text.split("\n\n")
    ]
    chosen = paragraphs[0]
    for sentences in paragraphs:
        if found := [n for n, sentence in enumerate(sentences) if EQUATION.search(sentence)]:
            chosen = [sentences[found[0]], *(each for each in sentences[found[0] + 1 :] if "w <-" in each)]
            break
    shown = REFERENCE.sub("", re.sub(r"\s+", " ", " ".join(chosen))).strip().removesuffix(".")
    return re.sub(r"^[^:<=(]*: ", "", shown) if chosen[0] == paragraphs[0][0] else shown


def built(rule: str) -> Rule:
    """A rule with its default arguments."""
    return rules.RULES[rule](**ARGUMENTS.get(rule, {})).build()


def protocol(rule: str) -> str:
    """Who trains when, by the rule's preset, and what the rule requires of it."""
    preset, needs = PRESETS.get(rule, {}), built(rule).requirements
    said = [RESTARTS.get(preset.get("protocol.restart", ""), preset.get("protocol", COMMON["protocol"]))]
    size = needs.buffer_size or preset.get("buffer_size")
    own = {name: value for name, value in preset.items() if name.startswith("protocol.")}
    own.pop("protocol.restart", None)
    own.pop("protocol.interval", None)
    if own.pop("protocol.download", None):
        said.append("from the model before the step")
    if own:  # it says when the server steps
        said += [f"`{name}={value}`" for name, value in own.items()]
    elif said[0] == "compass":
        said.append("a step for each group of clients that arrive together")
    elif said[0] == "polled":
        said.append("a step at each poll")
    elif said[0] == "tiered":
        said.append("a step for each round of a tier")
    elif size == 1:
        said.append("a step at each arrival")
    elif said[0] != "synchronous":
        said.append("K trips a step")
    if needs.initial_round:
        said.append("all clients train at the initial model first")
    default = Requirements()
    said += [
        f"{name.replace('_', ' ')}: {value}" if value is not True else name.replace("_", " ")
        for name, value in needs._asdict().items()
        if name not in KNOWN and value != getattr(default, name)
    ]
    return ", ".join(said)


def server_keeps(rule: str) -> str:
    """What the server of a rule keeps, from the shapes of its state."""
    made = built(rule)
    state = jax.eval_shape(lambda: made.init(jnp.zeros(ENTRIES), CLIENTS))
    sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state)]
    arrays = sum(size // ENTRIES for size in sizes if size % ENTRIES == 0)
    said = []
    if arrays:
        said.append(f"{arrays} array{'s' * (arrays > 1)} of the model's size")
    if made.memory:
        said.append("a stored value for each client")
    if made.needs_start:
        said.append("downloaded models")
    sent = jax.eval_shape(made.broadcast, state) if made.broadcast else {}
    sent = {
        name: shapes for name, shapes in sent.items() if any(leaf.shape for leaf in jax.tree.leaves(shapes))
    }
    if sent:
        said.append(f"sends {' and '.join(sorted(sent))} with the model")
    return ", ".join(said) or "nothing"


def vectors(rule: str) -> str:
    """Links to the conformance vectors of a rule."""
    names = [
        path.stem
        for path in sorted(VECTORS.glob("*.json"), key=lambda path: (len(path.stem), path.stem))
        if json.loads(path.read_text(encoding="utf-8")).get("rule") == rule
    ]
    links = [f"[{name}](../conformance/vectors/{name}.json)" for name in names]
    return ", ".join(links) or "[none](../tests/reference/conformance_vectors.py)"


def plain(text: str) -> str:
    """Text as Markdown that shows it as it is, but for code in double backticks."""
    parts = re.split(r"``(.*?)``", text)
    shown = [
        f"`{part}`"
        if n % 2
        else re.sub(r"([*_|\[\]])", r"\\\1", part.replace("<-", "←").replace("<", "&lt;"))
        for n, part in enumerate(parts)
    ]
    return "".join(shown)


def table(heading: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [heading, ["---"] * len(heading), *rows])


def link(rule: str) -> str:
    """A rule's name, as a link to its file."""
    module = inspect.getmodule(inspect.unwrap(rules.RULES[rule]))
    path = pathlib.Path(module.__file__).relative_to(ROOT)  # type: ignore[union-attr, arg-type]
    return f"[`{rule}`](../{path.as_posix()})"


def combinations() -> list[list[str]]:
    """The rows of algorithms that are a rule with other settings.

    Raises:
      ValueError: for one whose paper is not in ``COMBINATIONS``.
    """
    rows = []
    for name in sorted(set(ALGORITHMS) - set(rules.RULES)):
        if name not in COMBINATIONS:
            raise ValueError(f"name the paper of {name} in COMBINATIONS of docs/algorithms.py")
        preset = PRESETS[name]
        rule = preset.get("rule", name)
        own = {key: value for key, value in preset.items() if key not in ("rule", "learning_rate")}
        own = {key: value for key, value in own.items() if PRESETS.get(rule, {}).get(key) != value}
        said = [f"`{key}={value}`" for key, value in own.items() if key != "server_learning_rate"]
        said += [f"`{key}={value}`" for key, value in getattr(ALGORITHMS[name], "keywords", {}).items()]
        rows.append([f"`{name}`", COMBINATIONS[name], link(rule), ", ".join(said)])
    return rows


def page() -> str:
    """The whole page."""
    by_year = sorted(rules.RULES, key=lambda rule: (citation(rule)[1], rule))
    private, secure = privacy.eligible_rules(), privacy.secure_rules()
    what = [
        [link(rule), *map(plain, reversed(citation(rule))), plain(equation(rule)), protocol(rule)]
        for rule in by_year
    ]
    allowed = []
    for rule in by_year:
        needs = built(rule).requirements
        holds = (needs.linear, needs.additive, rule in private, rule in secure)
        marks = ["yes" if each else "" for each in holds]
        keeps = "an array of the model's size" if needs.correction else "nothing"
        allowed.append([link(rule), keeps, server_keeps(rule), *marks, vectors(rule)])
    headings = [
        "algorithm",
        "clients keep",
        "the server keeps",
        "linear",
        "additive",
        "private",
        "secure",
        "vectors",
    ]
    parts = [
        INTRODUCTION,
        "## What they are\n",
        table(["algorithm", "year", "paper", "equation", "protocol"], what),
        "",
        CAPABILITIES,
        table(headings, allowed),
        "",
        COMBINED,
        table(["algorithm", "paper", "rule", "with"], combinations()),
        "",
    ]
    return "\n".join(parts)


def main() -> None:
    """Writes the page, or checks it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/algorithms.md is out of date: run python docs/algorithms.py")


if __name__ == "__main__":
    main()
