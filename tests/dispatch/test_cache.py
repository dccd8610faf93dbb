"""The on-disk cache: private, whole, keyed by everything, never unpickled."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fmcore
from fmcore import config
from fmcore.dispatch.cache import CacheDir
from fmcore.errors import ConfigWarning, FmcoreError

KEY = {"device": "x", "version": 3}


@pytest.fixture
def cache(tmp_path):
    config.reload({"FMCORE_CACHE_DIR": str(tmp_path / "cache")})
    yield CacheDir("tuning")
    config.reload()


def test_round_trip_and_mode(cache):
    assert cache.load(KEY) is None
    cache.store(KEY, {"block": [64, 128]})
    assert cache.load(KEY) == {"block": [64, 128]}
    assert cache.load({**KEY, "version": 4}) is None
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert [p.suffix for p in cache.folder.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", json.dumps({"format": 99, "key": KEY, "value": 1}), "\x80"])
def test_a_corrupt_file_is_ignored_with_one_warning(cache, text):
    path = cache.path(KEY)
    path.write_text(text)
    with pytest.warns(ConfigWarning, match="is ignored") as caught:
        assert cache.load(KEY) is None
        assert cache.load(KEY) is None
    assert len(caught) == 1


def test_a_file_of_another_key_is_refused(cache):
    cache.store({**KEY, "device": "y"}, 5)
    cache.path({**KEY, "device": "y"}).replace(cache.path(KEY))
    with pytest.warns(ConfigWarning, match="another key"):
        assert cache.load(KEY) is None


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    config.reload({"FMCORE_CACHE_DIR": str(folder)})
    try:
        with pytest.raises(FmcoreError, match="can be written by others"):
            CacheDir("tuning")
    finally:
        config.reload()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_is_refused(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, 12345, 12345)
    config.reload({"FMCORE_CACHE_DIR": str(folder)})
    try:
        with pytest.raises(FmcoreError, match="belongs to user 12345"):
            CacheDir("tuning")
    finally:
        config.reload()


def test_concurrent_writers_leave_a_whole_file(cache):
    code = (
        "import sys; from fmcore.dispatch.cache import CacheDir; c = CacheDir('tuning')\n"
        "k = {'device': 'x', 'version': 3}\n"
        "for i in range(200): c.store(k, [int(sys.argv[1])] * 500)"
    )
    env = {**os.environ, "FMCORE_CACHE_DIR": str(cache.folder.parent)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)], env=env) for n in (1, 2)]
    seen = 0
    while any(w.poll() is None for w in writers):
        value = cache.load(KEY)
        if value is not None:
            seen += 1
            assert value in ([1] * 500, [2] * 500)
    assert [w.returncode for w in writers] == [0, 0]
    assert seen > 0


def test_a_lock_excludes_another_process(cache):
    code = (
        "from fmcore.dispatch.cache import CacheDir; c = CacheDir('tuning'); k = {'device': 'x', 'version': 3}\n"
        "with c.lock(k): print(c.load(k))"
    )
    env = {**os.environ, "FMCORE_CACHE_DIR": str(cache.folder.parent)}
    with cache.lock(KEY):
        other = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
        cache.store(KEY, 7)
    assert other.communicate(timeout=60)[0].strip() == "7"


def test_nothing_in_the_project_unpickles():
    roots = [Path(fmcore.__file__).parent]
    for root in roots:
        for file in root.rglob("*.py"):
            text = file.read_text()
            assert "import pickle" not in text, file
            assert "torch.load(" not in text, file
