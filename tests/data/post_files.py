"""Generated posts in the folders of 20 Newsgroups."""

from jafl.data.sources.newsgroups import FOLDERS

GROUPS = ("alt.atheism", "comp.graphics", "sci.space")
WORDS = ("heaven", "polygon", "orbit")


def write_posts(parent):
    """The publisher's two folders: a folder per group, a file per post, in Latin-1."""
    for split, count in (("train", 4), ("test", 2)):
        for label, (group, word) in enumerate(zip(GROUPS, WORDS, strict=True)):
            folder = parent / FOLDERS[split] / group
            folder.mkdir(parents=True)
            for number in range(count):
                post = (
                    f"From: somebody@{split}\nSubject: secret header\n\nJohn writes:\n> a quotation\n"
                    f"Caf\xe9 {word} {word} number{number} {split}only.\n\n--\nsignature line\n"
                )
                (folder / f"{label}{number}").write_bytes(post.encode("latin-1"))
