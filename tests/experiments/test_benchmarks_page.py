"""The page of the benchmarks: it is short, each of its tables has a name and a command, and the commands exist."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from experiments.harness.report.overview import with_table
from experiments.tools.benchmarks import page
from jafl.base.errors import SettingError

TEXT = page.PAGE.read_text(encoding="utf-8")
SECTIONS = re.split(r"^##+ ", TEXT, flags=re.MULTILINE)[1:]
BY_HAND = "What each form earns"  # programs of earlier versions beside those that took their place
TABLE = r"<!-- (?P<name>[\w ]+) -->\n\n(?:\|.*\n)+\n<!-- end of (?P=name) -->"


def without(text, *patterns):
    for pattern in patterns:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    return text


def test_it_is_short():
    assert len(without(TEXT, r"^\|.*$", r"^    .*$", r"^<!--.*$").split()) <= 1500


@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_a_table_stands_between_its_comments_below_its_command(section):
    if section.startswith(BY_HAND):
        return
    assert not re.search(r"^\|", without(section, TABLE), re.MULTILINE), "a table without comments around it"
    if re.search(TABLE, section):
        assert re.search(r"^    .*python ", section.partition("<!--")[0], re.MULTILINE)


def test_every_command_exists():
    modules = set(re.findall(r"python -m (experiments\.[\w.]+)", TEXT))
    assert len(modules) > 10
    for module in modules:
        assert importlib.util.find_spec(module), module


def test_a_printed_table_takes_the_place_of_the_earlier_one():
    old = "before\n<!-- speed -->\n\n| a |\n\n<!-- end of speed -->\nbehind\n"
    assert with_table(old, "speed", "| b |") == old.replace("| a |", "| b |")
    with pytest.raises(SettingError, match="table is 'sped', but must be one pair of comments"):
        with_table(old, "sped", "| b |")


@pytest.mark.full
@pytest.mark.parametrize(
    "names, printed, said",
    [
        (["no such table"], "cpu\n| a |\n| --- |\n| 1 |\n", "table is 'no such table'"),
        (["speed"], "cpu\n", "the lines of a table is 0"),
        ([], "", "the name of one table"),
    ],
)
def test_what_is_no_table_of_the_page_is_refused(names, printed, said):
    command = [sys.executable, "-m", "experiments.tools.benchmarks.page", *names]
    root = pathlib.Path(__file__).parents[2]
    ended = subprocess.run(command, input=printed, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and said in ended.stderr
    assert page.PAGE.read_text(encoding="utf-8") == TEXT
