# @title This cell installs jafl if it is missing, and leaves the JAX that is there as it is.
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

EXTRAS = "[data,mnist,plots,checkpoints]"  # all but one, which would replace the attrs that is there by an older one
REPOSITORY = ""  # where jafl is fetched from, unless this notebook lies in a checkout of it


def install() -> None:
    """Installs jafl with pip, whose constraints are the versions of JAX, its plugins and NumPy that are here."""
    here = pathlib.Path.cwd()
    folders = (here, *here.parents, here / "jafl")
    checkouts = [folder for folder in folders if (folder / "jafl" / "__init__.py").is_file()]
    if not checkouts and not REPOSITORY:
        raise RuntimeError("jafl is missing: open this notebook inside a checkout of jafl's repository.")
    wanted = f"{checkouts[0]}{EXTRAS}" if checkouts else f"jafl{EXTRAS} @ git+{REPOSITORY}"
    there = {each.name.lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()}
    kept = [name for name in there if name in ("jax", "jaxlib", "libtpu", "numpy") or name.startswith("jax-")]
    with tempfile.TemporaryDirectory() as folder:
        constraints = pathlib.Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{name}=={there[name]}\n" for name in kept))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), wanted]
        ended = subprocess.run(pip, capture_output=True, text=True)
    if ended.returncode:
        beside = f"beside JAX {there['jax']}" if "jax" in there else "here"
        raise RuntimeError(
            f"jafl, which needs JAX 0.7.0 or newer, cannot be installed {beside}:\n{ended.stderr}"
        )
    importlib.invalidate_caches()


found = importlib.util.find_spec("jafl")
if found is None or found.origin is None:  # without an origin it is a mere folder of this name
    install()

import jafl

jafl.compilation_cache()  # a second run of a cell, or of the notebook, need not compile again
