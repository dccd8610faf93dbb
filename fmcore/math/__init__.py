"""``fm.math``: array API names and promotion rules, each op dispatched to the best backend for the call.

>>> fm.math.add(torch.tensor([1.0]), torch.tensor([2.0], dtype=torch.float64))
tensor([3.], dtype=torch.float64)
"""

from __future__ import annotations

from fmcore.math import elementwise, linalg, logic, nn, reductions
from fmcore.math.elementwise import *  # noqa: F403
from fmcore.math.linalg import *  # noqa: F403
from fmcore.math.logic import *  # noqa: F403
from fmcore.math.nn import *  # noqa: F403
from fmcore.math.reductions import *  # noqa: F403

__all__: list[str] = []
__all__ += elementwise.__all__
__all__ += linalg.__all__
__all__ += logic.__all__
__all__ += nn.__all__
__all__ += reductions.__all__
