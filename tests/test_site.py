"""The site of pages has every page and public name, builds without a warning, and its links lead somewhere."""

import functools
import html
import html.parser
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = pathlib.Path(__file__).parent.parent
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
# What the site is made from.
SOURCES = ("docs", "jafl", "experiments", "conformance", "*.md", "LICENSE", "CITATION.cff", "mkdocs.yml")
LARGEST = 40_000_000  # bytes of the site; a page of results for each experiment among them
sys.path.insert(0, str(ROOT / "docs" / "machinery"))

import public_reference as reference  # noqa: E402  (its folder is added above)

needs_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="needs requirements-docs.txt",
)


def pages_of(entry) -> list[str]:
    """The files that a part of the navigation names."""
    if isinstance(entry, str):
        return [entry]
    return [
        page for each in (entry.values() if isinstance(entry, dict) else entry) for page in pages_of(each)
    ]


def test_every_page_of_docs_is_in_the_navigation():
    named = pages_of(CONFIG["nav"])
    assert len(named) == len(set(named))
    inside = {page for page in named if not page.startswith("../")}
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    added = {page for page in written if page.startswith("results/")} - inside  # by the hooks
    assert inside == (written - added) | {"reference/index.md"}, "mkdocs.yml lists each page of docs/ in nav"
    assert all((ROOT / "docs" / page).is_file() for page in named if page.startswith("../"))


def test_the_front_page_has_the_ten_lines_and_the_command_of_the_readme():
    readme, front = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/README.md"))
    (ten_lines,) = re.findall(r"^```python\n.*?^```", readme, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^# run: .*?\n(.*?)\n```", readme, re.DOTALL | re.MULTILINE)
    assert ten_lines in front and f"```sh\n{command}\n```" in front


@pytest.mark.full
def test_every_public_name_is_on_a_page_of_the_reference():
    pages = reference.pages()
    for name in reference.public_names():
        assert reference.page_of_name()[name] in pages
    assert set(pages_of(reference.navigation())) == set(pages)


def test_a_public_name_on_no_page_is_refused(monkeypatch):
    chapter = reference.CHAPTERS["simulate"]
    short = chapter._replace(names=tuple(name for name in chapter.names if name != "forecast"))
    monkeypatch.setitem(reference.CHAPTERS, "simulate", short)
    chapter_names = functools.cache(reference.chapter_names.__wrapped__)
    monkeypatch.setattr(reference, "chapter_names", chapter_names)
    with pytest.raises(ValueError, match=r"jafl\.forecast is on no page"):
        reference.page_of_name.__wrapped__()


def test_a_rule_s_page_says_its_defaults_and_where_it_was_tried():
    page = reference.pages()["reference/rules/fedavg.md"]
    assert "::: jafl.rules.fedavg.fedavg" in page
    assert "| `fedavgm` | 0.1 | 1 |" in page and "`server_optimizer.momentum=0.9`" in page
    assert "../results/fedbuff_table1.md" in page


def test_names_in_code_become_links_but_not_within_headings_links_and_blocks():
    before = "<h2><code>jafl.simulate</code></h2><p><code>jafl.simulate</code> <code>jafl.delays.uniform</code></p>"
    linked = reference.with_links(before, here="how_to.html")
    assert linked.count("<a ") == 2 and linked.startswith("<h2><code>")
    assert '<a href="reference/delays.html#jafl.delays.uniform"><code>' in linked
    again = reference.with_links(linked, here="how_to.html")
    assert again == linked
    assert "<a" not in reference.with_links("<pre><code>jafl.simulate</code></pre> <code>jafl.no</code>", "a")
    assert 'href="rules/ace.html"' in reference.with_links(
        "<code>jafl.rules.ace</code>", "reference/plots.html"
    )


@needs_mkdocs
def test_where_links_of_a_repository_s_page_lead_in_the_site():
    import hooks

    benchmarks = "experiments/tools/benchmarks/README.md"
    moved = {
        ("../BUILD.md#a-rule", "docs/README.md", "index.md"): "BUILD.md#a-rule",
        ("../README.md", "docs/how_to.md", "how_to.md"): "repository.md",
        ("../jafl/rules/", "docs/README.md", "README.md"): "reference/rules/index.md",
        ("../experiments/", "docs/README.md", "README.md"): "experiments/README.md",
        ("../../../docs/precision.md#a", benchmarks, benchmarks): "../../../precision.md#a",
        ("docs/", "README.md", "repository.md"): "README.md",
        ("LICENSE", "README.md", "repository.md"): "files/LICENSE.md",
        ("#below", "README.md", "repository.md"): "#below",
        ("https://example.org/a.md", "README.md", "repository.md"): "https://example.org/a.md",
    }  # fmt: skip
    for (link, path, here), expected in moved.items():
        assert hooks._moved(link, path, here) == expected, link


def build(root: pathlib.Path, site: pathlib.Path) -> subprocess.CompletedProcess:
    """Builds the site of a checkout, as BUILD.md says."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", site],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )


class Seen(html.parser.HTMLParser):
    """What a page of the site has: its anchors, its links, and what a browser fetches for it."""

    def __init__(self, page: pathlib.Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.fetched.append(given["href"])
        elif "src" in given:
            self.fetched.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """{file: what it has} of the site, and its folder."""
    folder = tmp_path_factory.mktemp("site")
    ended = build(ROOT, folder)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr and "end of life" not in ended.stderr
    return folder, {page.relative_to(folder): Seen(page) for page in folder.rglob("*.html")}


@needs_mkdocs
@pytest.mark.full
def test_the_site_builds_without_a_warning_and_all_links_lead_somewhere(site):
    folder, pages = site
    assert {"index.html", "gallery.html", "BUILD.html"} <= {str(page) for page in pages}
    for page, seen in pages.items():
        for link in seen.links:
            address = urlsplit(link)
            if address.scheme or page.name == "404.html":
                continue
            target = folder / page.parent / unquote(address.path) if address.path else folder / page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page} links to {link}, which is not there"
            if address.fragment and target.suffix == ".html":
                there = pages[target.resolve().relative_to(folder.resolve())].anchors
                assert unquote(address.fragment) in there, f"{page} links to {link}: there is no such place"


@needs_mkdocs
@pytest.mark.full
def test_the_site_shows_lists_tables_and_blocks_as_a_repository_s_page_does(site):
    """Python-Markdown, which MkDocs uses, reads some lists unlike the CommonMark of repositories' pages."""
    folder, _ = site
    commonmark = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    for source in (ROOT / "docs").glob("*.md"):
        there = folder / ("index.html" if source.name == "README.md" else f"{source.stem}.html")
        article = re.search(r"<article.*?</article>", there.read_text(encoding="utf-8"), re.DOTALL)[0]
        expected = commonmark.render(source.read_text(encoding="utf-8"))
        for tag in ("p", "ul", "ol", "li", "table", "tr", "pre", "img", "em", "strong"):
            drawn = tag == "pre" and source.name == "layers.md"  # its chart is shown as bands
            counts = [len(re.findall(rf"<{tag}[ >]", text)) for text in (expected, article)]
            assert counts[0] == counts[1] + drawn, f"{source.name} has {counts} <{tag}>"


@needs_mkdocs
@pytest.mark.full
def test_the_site_can_be_read_without_a_network(site):
    folder, pages = site
    for page, seen in pages.items():
        if page.name != "404.html":
            for address in seen.fetched:
                assert not urlsplit(address).netloc, f"{page} fetches {address}"
                assert (folder / page.parent / urlsplit(address).path).is_file(), f"{page} lacks {address}"
    assert not any("mermaid" in file.read_text(encoding="utf-8") for file in folder.glob("*.html"))
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < LARGEST


@needs_mkdocs
@pytest.mark.full
def test_every_public_name_is_explained_in_the_site(site):
    folder, pages = site
    for name, page in reference.page_of_name().items():
        text = (folder / page).with_suffix(".html").read_text(encoding="utf-8")
        if not page.startswith("reference/rules/") and name not in reference.MODULES:
            explained = reference.with_links(f"<code>{name}</code>", page.replace(".md", ".html"))
            anchor = re.search(r"#([\w.]+)", explained)[1]
            assert f'id="{anchor}"' in text, name
    fedbuff = (folder / "reference/rules/fedbuff.html").read_text(encoding="utf-8")
    for part in ("staleness_weight", "(1/K) sum_i s(staleness_i) update_i", "AISTATS 2022", "0.3"):
        assert part in fedbuff
    arrival = text_of(folder / "reference/contract.html")
    assert "staleness ( Array ) – [] int32, server steps; a fresh update has 0." in arrival
    for page in (folder / "reference").rglob(
        "*.html"
    ):  # the asterisks of two shapes such as [*P] enclose nothing
        assert not re.search(r"<em>[^<]*\]", page.read_text(encoding="utf-8")), page


def text_of(page: pathlib.Path) -> str:
    """The words of a page, with one space between them."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8"))).split())


@needs_mkdocs
@pytest.mark.full
def test_a_page_that_is_not_in_the_navigation_and_dead_links_end_the_build(tmp_path):
    root = tmp_path / "checkout"
    for pattern in SOURCES:
        for source in ROOT.glob(pattern):
            copy = shutil.copytree if source.is_dir() else shutil.copy
            root.mkdir(exist_ok=True)
            copy(source, root / source.name)
    (root / "docs" / "lonely.md").write_text("# Nobody names me\n")
    with open(root / "docs" / "words.md", "a", encoding="utf-8") as page:
        page.write("\n[a](no_page.md) [b](design.md#no-heading) [c](../BUILD.md#no-checklist)\n")
    ended = build(root, tmp_path / "site")
    assert ended.returncode != 0
    for part in ("lonely.md", "no_page.md", "#no-heading", "#no-checklist"):
        assert part in ended.stderr, ended.stderr
