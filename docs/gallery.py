"""Makes the pictures of docs/gallery.md with the commands that stand beneath them.

python docs/gallery.py                 runs every command and writes every picture
python docs/gallery.py timeline ...    only these pictures
"""

import io
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent
PAGE = FOLDER / "gallery.md"
COLOURS = 128
WIDEST = 1500  # pixels


class Picture(NamedTuple):
    """A picture of the page.

    Args:
      name: of its file in docs/pictures, without the ending.
      arguments: of run.py, as they stand beneath it.
      source: the file in the run directory that it is made from.
    """

    name: str
    arguments: tuple[str, ...]
    source: str


def pictures() -> list[Picture]:
    """The pictures of the page, from top to bottom."""
    shown = re.findall(
        r"^!\[[^\]]*\]\(pictures/([^)]*)\.png\)$.*?^```sh\npython run\.py(.*?)\n# (.*?)\n```$",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    return [Picture(name, tuple(shlex.split(command)), source) for name, command, source in shown]


def run(arguments: tuple[str, ...], folder: pathlib.Path) -> None:
    """Runs run.py with these arguments, for its run directory ``folder``."""
    subprocess.run(
        [sys.executable, FOLDER.parent / "run.py", *arguments, f"--output_dir={folder}"], check=True
    )


def compressed(file: pathlib.Path) -> bytes:
    """A picture as a PNG of few colours, at most ``WIDEST`` pixels wide, which is a fraction of its size."""
    with Image.open(file) as image:
        picture = image.convert("RGB")
    if picture.width > WIDEST:
        height = round(picture.height * WIDEST / picture.width)
        picture = picture.resize((WIDEST, height), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


def main(names: list[str]) -> None:
    """Makes the named pictures, or all."""
    wanted = [picture for picture in pictures() if not names or picture.name in names]
    if unknown := set(names) - {picture.name for picture in wanted}:
        sys.exit(f"docs/gallery.md has no picture called {', '.join(sorted(unknown))}.")
    with tempfile.TemporaryDirectory() as temporary:
        for number, arguments in enumerate(dict.fromkeys(picture.arguments for picture in wanted)):
            run(arguments, pathlib.Path(temporary, str(number)))
            for picture in wanted:
                if picture.arguments == arguments:
                    made = compressed(pathlib.Path(temporary, str(number), picture.source))
                    (FOLDER / "pictures" / f"{picture.name}.png").write_bytes(made)


if __name__ == "__main__":
    main(sys.argv[1:])
