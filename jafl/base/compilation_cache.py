"""Where compiled programs are kept between processes."""

import os
import pathlib

from jafl.base.errors import require
from jafl.base.paths import given_path

LEAST_SECONDS = (
    0.2  # of compiling, for a program to be kept; JAX's own default, 1, leaves out most of a small run's
)


def compilation_cache(folder: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Keeps compiled programs in a folder, so that a later process with the same programs need not compile them.

    Call it before the first run; ``run.py`` calls it by itself. Two environment variables of JAX change what it does:
    ``JAX_COMPILATION_CACHE_DIR`` names the folder if none is given here, and ``JAX_ENABLE_COMPILATION_CACHE=false``
    switches the cache off.

    Args:
      folder: where to keep the programs; created if it does not exist. Default: ``jafl`` in the user's folder for
        caches, ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Returns:
      The folder.

    Raises:
      SettingError: if ``folder`` is a file.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache as jax_cache

    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder is None and named:  # JAX has read it, and the variables beside it, by itself
        return pathlib.Path(named)
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    path = caches / "jafl" if folder is None else given_path(folder, "a folder", "folder")
    require(not path.is_file(), "folder", str(path), "a folder, or a path where there is nothing yet")
    jax.config.update("jax_compilation_cache_dir", str(path))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    jax_cache.reset_cache()  # JAX chooses its folder at the first program; without this a later call would do nothing
    return path
