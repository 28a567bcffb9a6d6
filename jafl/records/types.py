"""Names of types that say what an array or a pytree means.

They are all ``Any`` to a type checker: JAX's own types cannot stand here, and a rule may choose any pytree for its
state and its buffer.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # an array, of JAX on the device or of NumPy on the host
ArrayTree: TypeAlias = Any  # a pytree of arrays
Params: TypeAlias = ArrayTree  # [*P]: the parameters of a model
Updates: TypeAlias = ArrayTree  # [*P], like the parameters: trained minus downloaded, or a sum of such
Gradients: TypeAlias = (
    ArrayTree  # [*P], like the parameters: an optimizer subtracts it; also a pseudo-gradient
)
RuleState: TypeAlias = ArrayTree  # what a rule keeps from server step to server step
Buffer: TypeAlias = ArrayTree  # what a rule gathers during one server step
StoredValue: TypeAlias = ArrayTree  # [*V]: what the server stores for one client
Columns: TypeAlias = Mapping[str, np.ndarray]  # {name: [J, ...]}: a row per applied trip, made on the host
Report: TypeAlias = Mapping[str, Array]  # {name: []}: scalars for the history
