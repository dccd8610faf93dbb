"""Makes ``mask_oracle`` importable: the tests run in importlib mode, where siblings are not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
