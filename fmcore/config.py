"""Every FMCORE_* variable as one typed descriptor. They are read at import and by ``reload``, never on a call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fmcore.errors import ConfigWarning, InvalidInputError

__all__ = ["VARIABLES", "Config", "Variable", "current", "reload"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: Full name.
        kind: ``bool``, ``int``, ``str``, ``names`` (comma separated) or ``names?`` (unset differs from empty).
        default: Value where it is not set, as text.
        doc: One sentence.
    """

    name: str
    kind: str
    default: str
    doc: str

    @property
    def field(self) -> str:
        """Name of the attribute on Config."""
        return self.name.removeprefix("FMCORE_").lower()

    def parse(self, text: str | None) -> Any:
        """Turn the variable's text into its value.

        Raises:
            InvalidInputError: The text is not of this kind.
        """
        if self.kind == "names?" and text is None:
            return None
        value = self.default if text is None else text.strip()
        if self.kind == "bool":
            if value.lower() not in _TRUE | _FALSE:
                raise InvalidInputError(f"{self.name}={value!r} is not a yes or no; use 1 or 0")
            return value.lower() in _TRUE
        if self.kind == "int":
            try:
                return int(value)
            except ValueError as error:
                raise InvalidInputError(f"{self.name}={value!r} is not a whole number") from error
        if self.kind in ("names", "names?"):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value


VARIABLES = (
    Variable("FMCORE_BACKEND", "str", "", "Preferred backends, per op by pattern: 'cuda_hopper,triton; moe.*=torch'."),
    Variable("FMCORE_BLOCK", "names", "", "Backends that are never used."),
    Variable(
        "FMCORE_STRICT", "bool", "0", "Make every preference strict: a named backend serves the call, or it raises."
    ),
    Variable(
        "FMCORE_PLUGINS",
        "names?",
        "",
        "Allow-list of plugins (entry-point names); unset allows all that are installed.",
    ),
    Variable("FMCORE_PLUGIN_AUTOLOAD", "bool", "1", "0 discovers no plugin; only register_backend() adds backends."),
    Variable("FMCORE_LOG", "str", "", "Level of the 'fmcore' logger, such as INFO; a handler to stderr is added."),
    Variable("FMCORE_TRACE", "str", "", "File to which every decision is appended as a line of JSON."),
    Variable("FMCORE_CACHE_DIR", "str", "", "Folder of on-disk caches; the user's own cache folder when unset."),
    Variable(
        "FMCORE_TUNE",
        "int",
        "0",
        "Seconds that tuners may search for launch configurations; 0 uses stored and default ones.",
    ),
    Variable(
        "FMCORE_CHECK",
        "bool",
        "0",
        "Check values that only the device knows (index ranges), at the price of a synchronisation.",
    ),
    Variable("FMCORE_ALLOW_REFERENCE", "bool", "0", "Permit automatic selection to end at the float64 reference."),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The values in force."""

    backend: str = ""
    block: tuple[str, ...] = ()
    strict: bool = False
    plugins: tuple[str, ...] | None = None
    plugin_autoload: bool = True
    log: str = ""
    trace: str = ""
    cache_dir: str = ""
    tune: int = 0
    check: bool = False
    allow_reference: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Read all variables.

        Raises:
            InvalidInputError: A value is not of its variable's kind.
        """
        return cls(**{variable.field: variable.parse(environ.get(variable.name)) for variable in VARIABLES})


_current = Config()
_listeners: list[Callable[[Config], None]] = []


def current() -> Config:
    """Return the values in force."""
    return _current


def reload(environ: Mapping[str, str] | None = None) -> Config:
    """Read the environment anew and tell everything that depends on it.

    Args:
        environ: A mapping to read in place of ``os.environ``.
    """
    global _current  # noqa: PLW0603 (the one place where the process's configuration changes)
    _current = Config.from_environ(os.environ if environ is None else environ)
    for listener in _listeners:
        listener(_current)
    return _current


def on_reload(listener: Callable[[Config], None]) -> None:
    """Call ``listener`` whenever the environment is read anew."""
    _listeners.append(listener)


def warn_unknown(plugin_variables: Iterable[str], environ: Mapping[str, str] | None = None) -> None:
    """Warn of each FMCORE_* variable that nobody reads, with the nearest known name."""
    known = {variable.name for variable in VARIABLES} | set(plugin_variables)
    for name in sorted(os.environ if environ is None else environ):
        if name.startswith("FMCORE_") and name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
            warnings.warn(
                f"environment variable {name} is not known to fmcore and is ignored{hint}", ConfigWarning, stacklevel=2
            )
