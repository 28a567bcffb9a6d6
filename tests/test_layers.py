"""Which package may import which: downwards only through six layers; the host half never imports JAX."""

import graphlib
import subprocess
import sys

import pytest
from package_layers import LAYER_OF, PACKAGE, files, imported_rooms, imports, room_imports

# A room, or a file in one.
HOST_ONLY = (
    "base/errors",
    "base/extras",
    "base/array_files",
    "base/given_arrays",
    "base/checksums",
    "base/display",
    "records",
    "schedule",
    "data",
    "diagnostics",
    "plots",
    "config/settings",
    "cli/command_help",
    "privacy/mechanisms",
    "privacy/sensitivity",
    "privacy/gaussian",
    "privacy/amplified",
    "privacy/report",
    "traces",
)
READS_FLAGS = "cli"
# Where a module may be used inside a function only, because importing it takes long.
HEAVY = (
    "safetensors",
    "matplotlib",
    "sklearn",
    "tqdm",
    "scipy",
    "tensorflow",
    "tensorflow_datasets",
    "orbax",
    "filelock",
    "tensorboardX",
    "jinja2",
    "array_record",
    "PIL",
    "requests",
    "pandas",
    "msgpack",
    "tokenizers",
    "dp_accounting",
)


def test_every_room_has_a_layer():
    assert {room for room, _ in files()} == set(LAYER_OF)


def test_imports_go_down_only():
    for room, file in files():
        for other in imported_rooms(file):
            assert LAYER_OF[other] <= LAYER_OF[room], (
                f"{file} imports from {other}, which is in a higher layer"
            )


@pytest.mark.full
def test_no_room_imports_itself_through_another():
    graphlib.TopologicalSorter(room_imports()).prepare()  # raises CycleError, which names the rooms


@pytest.mark.full
def test_host_half_never_imports_jax():
    for room, file in files():
        if room in HOST_ONLY or f"{room}/{file.stem}" in HOST_ONLY:
            assert not {name for name in imports(file) if name.split(".")[0] in ("jax", "flax", "optax")}, (
                file
            )
    rooms = "jafl.schedule, jafl.data, jafl.config.settings, jafl.plots, jafl.engine.plan.slots_and_waves"
    program = f"import sys, {rooms}; jafl.in_waves; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PACKAGE.parent)


def test_only_the_command_line_reads_flags():
    for room, file in files():
        if room != READS_FLAGS:
            assert not {name for name in imports(file) if name.startswith("absl")}, file


@pytest.mark.full
def test_heavy_libraries_are_imported_where_they_are_used():
    for _, file in files():
        heavy = {name for name in imports(file, top_level_only=True) if name.split(".")[0] in HEAVY}
        assert not heavy, f"{file} imports {heavy} at the top"


def test_public_names_exist():
    import jafl

    for name in jafl.__all__:
        assert getattr(jafl, name) is not None
    assert set(jafl.__all__) <= set(dir(jafl))


@pytest.mark.full
def test_the_drawing_of_the_layers_is_current():
    check = subprocess.run(
        [sys.executable, "docs/layers.py", "--check"], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stderr
