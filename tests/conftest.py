"""What all tests share: their tiers, and how programs are compiled, kept and freed.

The default tier leaves out the tests marked ``full``; ``--full`` runs these, too, ``-m full`` those tests alone. The
tests marked ``gate`` take minutes and are in neither: ``-m gate`` runs them.
"""

import contextlib
import itertools
import multiprocessing.util
import os
import pathlib
import shutil
import sys
import tempfile

# One process, one core: small programs run quicker without a thread pool, and compile less often the same twice.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest  # noqa: E402  (the environment comes first)
from hypothesis import settings  # noqa: E402

settings.register_profile("jafl", deadline=None)  # the first example of a property may compile
settings.load_profile("jafl")

# Every program is kept, whatever time it takes to compile. In the environment, for the tests' own processes, too.
CACHE_ENVIRONMENT = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
TIERS = ("full", "gate")  # the marks of tests that are not in the default tier
# Each compiled program holds several memory maps, of which Linux gives a process 65,530; a compiler that gets no
# more aborts.
MOST_MEMORY_MAPS = 20_000


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run the tests marked full, too")


def pytest_configure(config):
    """Makes the session's folders: for temporary files, and a compilation cache that all workers share.

    Each worker has a folder for temporary files of its own; the processes of its tests use it, too.
    """
    # What failed tests have written stays where pytest writes it, among the user's temporary files.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Processes of tests meet in a folder that is kept until this process ends, which removes it itself.
    multiprocessing.util.get_temp_dir()
    folder = tempfile.mkdtemp(prefix="jafl-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(folder, "temporary")
    os.mkdir(tempfile.tempdir)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ.update(CACHE_ENVIRONMENT, JAX_COMPILATION_CACHE_DIR=os.path.join(folder, "compiled"))
    import jax

    if not hasattr(jax, "enable_x64"):  # its name before JAX 0.8; tests of the oldest version need it
        from jax.experimental import enable_x64

        jax.enable_x64 = enable_x64


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(config, items):
    """Deselects the tests marked ``full`` or ``gate``, unless --full, -m or a test's own name asks for them."""
    default = [item for item in items if not any(map(item.get_closest_marker, TIERS))]
    _mark_all_but_few(default, "few_by_default", "full")
    full = [item for item in items if item.get_closest_marker("full") and not item.get_closest_marker("gate")]
    _mark_all_but_few(full, "few_in_full", "gate")
    expression = config.option.markexpr
    if "gate" in expression or any("::" in word for word in config.args):
        return
    # Some gates are cases of a full test, which ``-m full`` would find, too.
    left_out = ["gate"] if config.option.full or "full" in expression else TIERS
    kept, deselected = [], []
    for item in items:
        (deselected if any(map(item.get_closest_marker, left_out)) else kept).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = kept


def _mark_all_but_few(items, mark, tier):
    """Marks for a tier what a mark such as ``few_by_default(N)`` leaves out: all but N cases of a test."""
    cases = {}
    for item in items:
        if item.get_closest_marker(mark):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for those in cases.values():
        (number,) = those[0].get_closest_marker(mark).args
        # Spread over all, each a place further in its part: equal steps may meet one value only of what takes turns.
        part = max(1, len(those) // number)
        kept = {position * len(those) // number + position % part for position in range(number)}
        for position, item in enumerate(those):
            if position not in kept:
                item.add_marker(tier)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Compiles a test's programs, and those of its fixtures, in the way that the test asks for."""
    asked_for = "quick_compilation" in getattr(item, "fixturenames", ())
    quick = asked_for and not item.get_closest_marker("compiled_as_for_users")
    if quick or "quick_compilation" in sys.modules:
        from quick_compilation import compile_quickly

        compile_quickly(quick)
    alone = item.get_closest_marker("without_compilation_cache")
    with without_compilation_cache() if alone else contextlib.nullcontext():
        return (yield)


@contextlib.contextmanager
def without_compilation_cache():
    """Neither this process nor those that it starts read or write the session's compilation cache."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def use(folder):
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()

    names, folder = ("JAX_COMPILATION_CACHE_DIR", *CACHE_ENVIRONMENT), jax.config.jax_compilation_cache_dir
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name, raising=False)
        use(None)
        try:
            yield
        finally:
            use(folder)


@pytest.fixture
def float64():
    """JAX computes in 64 bits."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left_among_temporary_files():
    """Fails a test after which there is something new in the folder for temporary files, and removes it."""
    folder = pathlib.Path(os.environ["TMPDIR"])
    before = set(folder.iterdir())
    yield
    left = sorted(set(folder.iterdir()) - before)
    for path in left:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert not left, f"left among the temporary files: {', '.join(path.name for path in left)}"


_ended = itertools.count(1)  # tests of this process


@pytest.fixture(autouse=True)
def _memory_maps_are_freed():
    """Frees all compiled programs where they hold many of the process's memory maps; looks after every tenth test."""
    yield
    maps = pathlib.Path("/proc/self/maps")  # Linux alone has this file, and the limit
    if next(_ended) % 10 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > MOST_MEMORY_MAPS:
        import jax

        jax.clear_caches()
