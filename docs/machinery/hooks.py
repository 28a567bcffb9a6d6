"""What MkDocs does besides for the site: pages from outside docs/, the reference, and links that work in both views.

On a repository's page a link leads to a file; ``../BUILD.md#a-rule`` from docs/ is one of them. The site has the same
pages in another layout, so each link is looked up by the file that it means.
"""

import functools
import html
import pathlib
import posixpath
import re
import sys
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from pymdownx.slugs import slugify

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

import public_reference as reference  # noqa: E402  (its folder is added above)

# Where a page that is not in docs/ lies in the site; the rest of them have the same path in both.
PLACES = {"README.md": "repository.md"}
RESULTS = "results/README.md"  # the summary of the experiments' results
NOTEBOOK = ".ipynb"  # shown as Jupyter shows it, with its pictures
# {ending of a file whose text becomes a page: its language}
LANGUAGES = {".py": "python", ".sh": "sh", ".cff": "yaml", ".toml": "toml", ".json": "json", ".txt": "text",
             "": "text"}  # fmt: skip
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
ARROWS = re.compile(r"^An arrow means.*?\n\n", re.DOTALL | re.MULTILINE)
NO_ARROWS = "The table below the layers says what each room imports from.\n\n"
FENCED = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)


def place(path: str) -> str:
    """Where a file or folder of the repository lies in the site; ``path`` from the top of the repository."""
    if path.replace("/", ".") in reference.MODULES:
        return reference.MODULES[path.replace("/", ".")]
    path = _source_file(path)
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".md"):
        return PLACES.get(path, path)
    if path.endswith(NOTEBOOK):
        return path.removesuffix(NOTEBOOK) + ".md"
    return f"files/{path}" + ".md" * (pathlib.Path(path).suffix in LANGUAGES)


def _source_file(path: str) -> str:
    """The file that a link to ``path`` shows: of a folder its README."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the names that a repository's page gives them; the reference takes its place in the navigation."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.nav = _nav(config.nav)
    return config


def _nav(entry: Any) -> Any:
    """The navigation, with the pages from outside docs/ where the site has them, and the reference's own pages."""
    if isinstance(entry, list):
        return [_nav(each) for given in entry for each in (given, *_pages_beside(given))]
    if isinstance(entry, dict):
        return {
            title: reference.navigation() if value == "reference/index.md" else _nav(value)
            for title, value in entry.items()
        }
    return place(entry.removeprefix("../")) if entry.startswith("../") else entry


def _pages_beside(entry: Any) -> list[str]:
    """The pages of the experiments' results, which follow their summary."""
    if entry != {"Results": RESULTS}:
        return []
    folder = (ROOT / "docs" / RESULTS).parent
    names = sorted(path.name for path in folder.glob("*.md") if path.name != pathlib.Path(RESULTS).name)
    return [posixpath.join(posixpath.dirname(RESULTS), name) for name in names]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the navigation that lie outside docs/, the files that pages link to, and the reference."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.generated_by is None]
    waiting += [path for path in _outside() if (ROOT / path).is_file()]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if path.endswith(NOTEBOOK):
            for each in _notebook(path, config):
                files.append(each)
        elif not path.startswith("docs/"):
            files.append(_file(path, config))
        linked = set(_linked(path)) if path.endswith(".md") else set()
        new = {each for each in linked if (ROOT / each).is_file() and not each.startswith("docs/")} - seen
        seen |= new
        waiting += sorted(new)
    return files


def _outside() -> list[str]:
    """The files outside docs/ that the navigation names."""
    return re.findall(r"\.\./([\w./]+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def _linked(path: str) -> list[str]:
    """The files that a page links to, from the top of the repository."""
    text = FENCED.sub("", (ROOT / path).read_text(encoding="utf-8"))
    links = [link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"\w+:", link)]
    paths = [posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in links if link]
    return [_source_file(each) for each in paths]


def _file(path: str, config: MkDocsConfig) -> File:
    """A file from outside docs/: Markdown as it is, another text as a page that shows it, anything else copied."""
    suffix = pathlib.Path(path).suffix
    if suffix not in LANGUAGES:
        return File.generated(config, place(path), abs_src_path=str(ROOT / path))
    content = f"# {path}\n\n````{LANGUAGES[suffix]}\n{(ROOT / path).read_text(encoding='utf-8')}````\n"
    return File.generated(config, place(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _notebook(path: str, config: MkDocsConfig) -> list[File]:
    """The page of a notebook, and the pictures in it."""
    names = {"unique_key": pathlib.Path(path).stem}
    text, resources = MarkdownExporter().from_filename(str(ROOT / path), resources=names)
    page = File.generated(config, place(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV)
    pictures = [
        File.generated(config, posixpath.join(posixpath.dirname(path), name), content=content)
        for name, content in resources["outputs"].items()
    ]
    return [page, *pictures]


@functools.cache
def _path_of_place() -> dict[str, str]:
    """{place in the site: path in the repository} of the pages from outside docs/."""
    pages = [*ROOT.glob("**/*.md"), *ROOT.glob(f"*/*{NOTEBOOK}")]
    return {place(str(p.relative_to(ROOT))): str(p.relative_to(ROOT)) for p in pages}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    del config, files
    here = page.file.src_uri
    if here.startswith(("reference/", "files/")):
        return markdown
    path = _path_of_place().get(here, f"docs/{here}")
    parts = FENCED.split(markdown)
    parts[::2] = [LINK.sub(lambda link: _moved(link[1], path, here), part) for part in parts[::2]]
    if here == "layers.md":
        parts = [ARROWS.sub(NO_ARROWS, _bands(part)) for part in parts]
    return "".join(parts)


def _moved(link: str, path: str, here: str) -> str:
    """A link of the page ``path`` of the repository, as the page ``here`` of the site has it."""
    target, hash_sign, anchor = link.partition("#")
    if re.match(r"\w+:", link) or not target:
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if not (ROOT / target).exists():  # the pictures of a notebook, which lie beside its page
        return link
    return posixpath.relpath(place(target), posixpath.dirname(here) or ".") + hash_sign + anchor


def _bands(chart: str) -> str:
    """The layers of a Mermaid chart as bands of names, since the site brings no JavaScript that draws one."""
    if not chart.startswith("```mermaid"):
        return chart
    bands = []
    for title, rooms in re.findall(r'subgraph \w+\["(.*?)"\]\n(.*?)\n    end', chart, re.DOTALL):
        names = "".join(f"<code>{html.escape(name)}</code> " for name in re.findall(r'\["(.*?)"\]', rooms))
        bands.append(f'<div class="layer"><b>{html.escape(title)}</b><span>{names}</span></div>')
    return '<div class="layers">' + "".join(bands) + "</div>\n"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes a link of each public name that stands in code, to where the reference explains it."""
    del config, files
    return reference.with_links(html, here=page.url)
