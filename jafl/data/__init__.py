"""Examples and who holds them: sources, partitions among clients, and the federation they make. NumPy only.

    source = digits()
    federation = federate(source, dirichlet(source.y, 100, alpha=0.3, seed=0))

A source is any data set with a common test set; ``SOURCES`` and ``PARTITIONS`` name the ones that come with
jafl. Your own arrays become a federation with ``Federation.from_arrays``, your own division with
``Partition.from_lists``.
"""

from jafl.data.federation import Federation, Partition, Source, federate
from jafl.data.partitions import PARTITIONS, dirichlet, iid, label_groups, labels_per_client
from jafl.data.server_examples import keep_for_server
from jafl.data.sources import SOURCES, digits, synthetic

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Federation",
    "Partition",
    "Source",
    "digits",
    "dirichlet",
    "federate",
    "iid",
    "keep_for_server",
    "label_groups",
    "labels_per_client",
    "synthetic",
]
