"""One study that two processes share through a real PostgreSQL cluster, made for the test and stopped after it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from onespike.errors import UsageError
from onespike.scale_search import search
from test_search import check_shared, parabola, worker


def programs() -> Path | None:
    """Where initdb and pg_ctl are: Debian keeps them out of the search path."""
    result = shutil.which("initdb")
    if result:
        return Path(result).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@pytest.fixture(scope="module")
def server():
    """The URL of a new, empty database on a free loopback port."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    place = programs()
    if place is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # not pytest's folder, which only its own user may enter
    folder = Path(tempfile.mkdtemp(prefix="onespike-postgresql-"))
    name = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    if name is not None:
        shutil.chown(folder, name)

    def run(program: str, *words: str) -> None:
        done = subprocess.run(
            [place / program, *words], capture_output=True, text=True, check=False, user=name, cwd=folder,
            group=pwd.getpwnam(name).pw_gid if name else None, extra_groups=[] if name else None,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, log = str(folder / "data"), str(folder / "log")
    options = f"-h 127.0.0.1 -p {port} -k '' -c fsync=off"
    try:
        run("initdb", "-D", data, "-U", "onespike", "-A", "trust", "-E", "UTF8", "--no-sync")
        run("pg_ctl", "-D", data, "-l", log, "-w", "-t", "200", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://onespike@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


def test_two_processes_share_one_study(server, tmp_path):
    log = tmp_path / "log"
    processes = [worker(tmp_path, server, log, 14) for _ in range(2)]
    check_shared(server, processes, 14, log)
    result = search(parabola, trials=14, fixed=(1.0, 0.25), storage=server, resume=True, sampler="tpe")
    assert 14 <= len(result.trials) <= 15  # nothing is left to do
    assert {1.0, 0.25} <= {trial.scale for trial in result.trials}


def test_a_database_that_is_not_there(server):
    url = server.replace("/postgres", "/absent")
    with pytest.raises(
        UsageError, match=r"^search: the storage postgresql\+psycopg:… cannot be used \(.*\)\. Give an"
    ) as caught:
        search(parabola, trials=1, storage=url)
    assert "onespike@" not in str(caught.value)
