"""Each notebook runs from start to end with few steps, plots included."""

import ast

import nbformat
import pytest
from notebook_files import FOLDER, NAMES, made, make, pictures, tagged

# Code that takes the place of a notebook's sizes.
FEW = {
    "1_ten_lines_to_a_picture": "client_trips = 200",
    "2_your_own_everything": "client_trips, people = 120, 20",
    "3_one_world_ten_rules": "client_trips, rates, seeds = 150, [0.1, 0.3], [1, 2]",
    "4_thousands_of_clients_on_a_tpu": "num_clients, in_flight, client_trips, rates = 200, 50, 400, [0.3, 1.0]",
    "5_reading_a_schedule": "num_clients, in_flight, buffer_size, client_trips = 400, 50, 5, 1_000",
    "6_repeat_a_papers_figure": "options = '--seed=0,1 --server_steps=12'",
}
# Programs are compiled quickly, for they run for a moment only.
QUICKLY = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PLATFORMS": "cpu"}


def assigned(code):
    """The names that code assigns at its top level."""
    targets = [
        target for node in ast.parse(code).body if isinstance(node, ast.Assign) for target in node.targets
    ]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", NAMES)
def test_its_sizes_stand_in_one_early_cell(name):
    notebook = made(name)
    (sizes,) = tagged(notebook, "sizes")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code.index(sizes) == 1, "after the cell that installs jafl"
    assert assigned(FEW[name]) <= assigned(sizes.source), "what the test makes small is not there any more"


@pytest.mark.few_in_full(1)
@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_start_to_end_with_few_steps(name, tmp_path, monkeypatch):
    for variable, value in QUICKLY.items():
        monkeypatch.setenv(variable, value)
    notebook = made(name)
    (sizes,) = tagged(notebook, "sizes")
    notebook.cells.insert(notebook.cells.index(sizes) + 1, nbformat.v4.new_code_cell(FEW[name]))
    make.run_in(notebook, tmp_path)  # raises with the cell and its traceback
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    assert len(pictures(notebook)) == len(pictures(stored)) > 0, "cells that show pictures"
