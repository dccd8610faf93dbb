"""On-disk caches: a private folder per user, whole files only, plain JSON, one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fmcore import config
from fmcore.errors import ConfigWarning, FmcoreError

FORMAT = 1
_warned: set[str] = set()


def root() -> Path:
    """Return the folder of all caches: FMCORE_CACHE_DIR, or the user's cache folder."""
    chosen = config.current().cache_dir
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("fmcore", appauthor=False))


class CacheDir:
    """A named cache of JSON values, keyed by everything that the value depends on.

    Files are written under a temporary name and renamed, so a reader sees a whole file or none. A file that is corrupt
    or was made for another key is ignored with one warning. Nothing is ever unpickled.

    Args:
        name: Sub-folder, such as ``"triton-tuning"``.

    Raises:
        FmcoreError: The folder belongs to another user, or others may write to it.

    Example:
        >>> import tempfile, fmcore.config
        >>> _ = fmcore.config.reload({"FMCORE_CACHE_DIR": tempfile.mkdtemp()})
        >>> cache = CacheDir("example")
        >>> cache.store({"device": "x", "version": 1}, [1, 2])
        >>> cache.load({"device": "x", "version": 1})
        [1, 2]
        >>> _ = fmcore.config.reload()
    """

    def __init__(self, name: str) -> None:
        self.folder = root() / name
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.folder.parent, self.folder):
            _refuse_foreign(folder)

    def path(self, key: Mapping[str, Any]) -> Path:
        """Return the file that holds the value for ``key``."""
        digest = hashlib.sha256(_canonical(key).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"

    def load(self, key: Mapping[str, Any]) -> Any:
        """Return the value stored for ``key``, or None."""
        path = self.path(key)
        try:
            _refuse_foreign(path)
            data = json.loads(path.read_text(encoding="utf-8"))
            return _value(data, key)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError, FmcoreError) as error:
            if str(path) not in _warned:
                _warned.add(str(path))
                warnings.warn(
                    f"cache file {path} is ignored: {error}; delete it to be rid of this", ConfigWarning, stacklevel=2
                )
            return None

    def store(self, key: Mapping[str, Any], value: Any) -> None:
        """Store a JSON value for ``key``: a temporary file, then an atomic rename."""
        text = json.dumps({"format": FORMAT, "key": dict(key), "value": value}, sort_keys=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, self.path(key))  # noqa: PTH105 (the atomic rename, by its own name)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def lock(self, key: Mapping[str, Any]) -> Iterator[None]:
        """Hold an exclusive lock on ``key`` among this user's processes: one rank tunes and the others wait."""
        with self.path(key).with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)


def _value(data: Any, key: Mapping[str, Any]) -> Any:
    if data["format"] != FORMAT or _canonical(data["key"]) != _canonical(key):
        raise ValueError("it was made for another key or format")
    return data["value"]


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, separators=(",", ":"))


def _refuse_foreign(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.getuid():
        raise FmcoreError(
            f"cache {path} belongs to user {found.st_uid}, not to {os.getuid()}; choose another FMCORE_CACHE_DIR"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FmcoreError(
            f"cache {path} can be written by others (mode {stat.S_IMODE(found.st_mode):o}); run `chmod go-w {path}`"
        )
