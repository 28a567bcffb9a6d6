"""How data show themselves: one line of text, and in a notebook a table with a picture of who holds what."""

from typing import Any

import numpy as np

from jafl.base import display


def split_facts(data: Any) -> dict[str, Any]:
    """{what: number or text} of the arrays of a source or a federation."""
    facts: dict[str, Any] = {"training examples": len(data.x), "test examples": len(data.test_x)}
    for name, x in (("validation examples", data.validation_x), ("examples of the server", data.server_x)):
        if x is not None:
            facts[name] = len(x)
    facts["shape of an example"] = describe_shape(data.x)
    return facts | (
        {"classes": data.num_classes} if has_classes(data) else {"labels": describe_shape(data.y)}
    )


def has_classes(data: Any) -> bool:
    """Whether each example's label is one of several classes, and no other number or array."""
    return data.y.ndim == 1 and data.y.dtype.kind in "iu" and bool(data.num_classes)


def describe_labels(data: Any) -> str:
    """``10 classes``, or ``labels () float32``."""
    return f"{data.num_classes} classes" if has_classes(data) else f"labels {describe_shape(data.y)}"


def describe_shape(x: np.ndarray) -> str:
    """``(8, 8, 1) float32``."""
    return f"{tuple(x.shape[1:])} {x.dtype.name}"


def source_line(source: Any) -> str:
    """A source in one line."""
    clients = source.natural_partition
    return display.one_line(
        "Source",
        repr(source.name),
        f"{display.count(len(source.x), 'training example')}, {len(source.test_x):,} for the test",
        describe_shape(source.x),
        describe_labels(source),
        *([f"{display.count(clients.num_clients, 'client')} of its own"] if clients is not None else []),
    )


def source_html(source: Any) -> str:
    """A source as a table, with the labels of its training examples."""
    clients = source.natural_partition
    facts = {"name": source.name, **split_facts(source)}
    if clients is not None:
        facts["clients of its own"] = clients.num_clients
    return display.card("Source", facts, _picture(source, None))


def federation_line(federation: Any) -> str:
    """A federation in one line."""
    return display.one_line(
        "Federation",
        repr(federation.name),
        display.count(federation.num_clients, "client"),
        f"{display.count(len(federation.x), 'training example')}, {len(federation.test_x):,} for the test",
        describe_shape(federation.x),
        describe_labels(federation),
    )


def federation_html(federation: Any) -> str:
    """A federation as a table, with the labels that clients hold."""
    sizes = federation.partition.sizes
    facts = {
        "name": federation.name,
        "clients": federation.num_clients,
        **split_facts(federation),
        "examples of a client": f"{sizes.min():,} to {sizes.max():,}, mean {display.number(float(sizes.mean()))}",
    }
    return display.card("Federation", facts, _picture(federation, federation.partition))


def partition_line(partition: Any) -> str:
    """A partition in one line."""
    sizes = partition.sizes
    return display.one_line(
        "Partition",
        display.count(len(sizes), "client"),
        f"{int(sizes.min()):,} to {int(sizes.max()):,} examples each",
        f"{display.count(int(sizes.sum()), 'example')} in all",
    )


def partition_html(partition: Any) -> str:
    """A partition as a table, with the sizes of its clients."""
    sizes = partition.sizes
    facts = {
        "clients": len(sizes),
        "examples": int(sizes.sum()),
        "fewest of a client": int(sizes.min()),
        "most of a client": int(sizes.max()),
        "mean of a client": float(sizes.mean()),
    }
    shown = _shown(len(sizes))
    picture = display.bars([sizes[shown]], _clients(len(sizes), shown), "examples of a client", _ends(shown))
    return display.card("Partition", facts, picture)


def _picture(data: Any, partition: Any) -> str:
    """Bars: the labels of each client's examples, or of all training examples where there is no partition."""
    labels = np.asarray(data.y)
    if not has_classes(data):
        if partition is None:
            return ""
        shown = _shown(partition.num_clients)
        sizes = partition.sizes[shown]
        return display.bars(
            [sizes], _clients(partition.num_clients, shown), "examples of a client", _ends(shown)
        )
    if partition is None:
        counts = np.bincount(labels, minlength=data.num_classes)
        return display.bars([counts], "label", "training examples by label", (0, len(counts) - 1))
    shown = _shown(partition.num_clients)
    offsets, classes = partition.offsets, data.num_classes
    counts = np.array(
        [
            np.bincount(labels[partition.indices[offsets[c] : offsets[c + 1]]], minlength=classes)
            for c in shown
        ]
    ).T
    told_apart = classes <= len(display.STACKED)
    title = "examples of a client" + (", a color for each label" if told_apart else "")
    parts = list(counts) if told_apart else [counts.sum(axis=0)]
    return display.bars(parts, _clients(partition.num_clients, shown), title, _ends(shown))


def _shown(num_clients: int) -> np.ndarray:
    """The clients that are drawn: all, or forty at equal distances."""
    return np.unique(np.linspace(0, num_clients - 1, min(num_clients, display.MOST_BARS)).round().astype(int))


def _clients(num_clients: int, shown: np.ndarray) -> str:
    return "client" if len(shown) == num_clients else f"client ({len(shown)} of {num_clients:,})"


def _ends(shown: np.ndarray) -> tuple[int, int]:
    return int(shown[0]), int(shown[-1])
