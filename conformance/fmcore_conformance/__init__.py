"""The conformance suite: what a backend does, op by op and dtype by dtype, proved or reported as not proved.

Three ways in: ``fmcore conform run``, ``pytest --pyargs fmcore_conformance --fmcore-backend NAME``, and as a library
(``collect`` the cases, ``execute`` them against a ``Target``). Importing this package imports nothing else.
"""

from __future__ import annotations

SUITE_VERSION = "2026.1"
"""Version of the cases and of the levels; a statement is only comparable within one."""

SCHEMA_VERSION = 1
"""Version of the statement's layout."""
