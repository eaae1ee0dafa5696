"""Write results so that they appear whole or not at all."""

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from onespike.errors import LoadError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
ADVICE = {
    **dict.fromkeys(FULL, "the disk is full. Free some space or choose another place."),
    **dict.fromkeys(FORBIDDEN, "writing there is not permitted. Change permissions or choose another place."),
    errno.ENAMETOOLONG: "this name is too long. Choose a shorter one.",
    errno.EISDIR: "this is a folder. Give the name of a file.",
}


@contextmanager
def atomic_files(path: Path) -> Iterator[Path]:
    """Yield a new folder; what is in it moves beside `path` only when the block ends well.

    What is named `path` moves last, so that whoever sees it sees all of it. After any exception, Ctrl-C included, nothing
    is left, not even parents made for it.
    """
    path = Path(path)
    refuse_existing(path)
    with _explained(path), _unfinished(path) as partial:
        yield partial
        refuse_existing(path)
        for file in sorted(partial.iterdir(), key=lambda file: file.name == path.name):
            file.rename(path.with_name(file.name))


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a new folder to write into; it takes the name `path` only when the block ends well."""
    with atomic_files(path) as partial:
        folder = partial / Path(path).name
        folder.mkdir()
        yield folder


def write_atomically(path: Path, contents: bytes | str) -> None:
    """Write one file; an older one is replaced only when the new one is whole. Text is UTF-8.

    The target of a link is replaced, never the link; devices and pipes are written through.
    """
    path, data = Path(path), contents.encode() if isinstance(contents, str) else contents
    with _explained(path):
        if (stream := _stream(path)) is None:
            target = _target(path)
            with _unfinished(target) as partial:
                (partial / "file").write_bytes(data)
                (partial / "file").replace(target)
            return
        for printed in filter(None, (sys.stdout, sys.stderr)):
            printed.flush()  # earlier output comes first
        with open(stream, "wb", closefd=isinstance(stream, Path)) as file:
            file.write(data)


def try_file(path: Path) -> None:
    """Check before long work that a file can be written; change nothing."""
    with _explained(path):
        if (stream := _stream(path)) is None:
            with _unfinished(_target(path), stay=False):
                pass
        elif isinstance(stream, Path) and not os.access(stream, os.W_OK):
            raise OSError(errno.EACCES, "")


def try_folder(path: Path) -> None:
    """Check before long work that a folder can be made at `path`, or that files can be written into it."""
    if path.exists() and not path.is_dir():
        raise LoadError(f"{path}: this is a file. Give the name of a folder.")
    with _explained(path), _unfinished(Path(os.path.realpath(path)) / "any", stay=False):
        pass


def try_new_folder(path: Path) -> None:
    """Check before long work that `atomic_directory` will succeed."""
    refuse_existing(path)
    with _explained(path), _unfinished(path, stay=False):
        pass


def sha256(path: Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder by its path there, or of a file as that of `.`."""
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    return {file.relative_to(path).as_posix(): sha256(file) for file in files}


def damage(file: Path, digest: str) -> str | None:
    """Return how a file differs from the one that was saved with this SHA-256; None if it does not."""
    if not file.is_file():
        return "is missing"
    return None if sha256(file) == digest else "is not the file that was saved (its SHA-256 differs)"


def refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists. Choose another name or remove it.")


def _target(path: Path) -> Path:
    """Return the regular file that a path leads to through its links; it need not exist."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise OSError(errno.EISDIR, "")
    if target.exists() and not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, "")
    return target


def _stream(path: Path) -> int | Path | None:
    """Return a stream that is written through, not replaced: standard output and error, a device or a pipe.

    The former are given by their numbers, since reopening the file that they go to would start at its beginning.
    """
    if not path.exists() or path.is_dir():
        return None
    for number in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    if path.is_file():
        return None
    if path.is_char_device() or path.is_fifo():
        return path
    raise LoadError(f"{path}: this is neither a file nor a pipe. Choose another place.")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn the system's error about a place that cannot be written into advice."""
    try:
        yield
    except Exception as error:
        # safetensors gives the number only in its message
        named = (code for code in (*FULL, *FORBIDDEN) if f"(os error {code})" in str(error))
        code = error.errno if isinstance(error, OSError) else next(named, None)
        advice = ADVICE.get(code or 0)
        if code in (errno.ENOTDIR, errno.EEXIST) and not path.parent.is_dir():
            advice = "a part of this path is a file. Choose another place."
        if advice is None:
            raise
        raise LoadError(f"{path}: {advice}") from error


@contextmanager
def _unfinished(path: Path, stay: bool = True) -> Iterator[Path]:
    """Yield a new folder beside `path`, so that the last step is a rename within one file system.

    It is locked while this process lives, so that other processes can tell when it is abandoned. Missing parents of `path`
    are made, and removed if the block fails or if they are not to stay.
    """
    missing = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for abandoned in path.parent.glob(".onespike-*.partial"):
            with _locked(abandoned) as ours:
                if ours:  # its process is gone
                    shutil.rmtree(abandoned, ignore_errors=True)
        made = Path(tempfile.mkdtemp(".new", ".onespike-", path.parent))
        with _locked(made):
            # only now do others look whether it is locked
            partial = made.rename(made.with_suffix(".partial"))
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        missing = [] if stay else missing
    finally:
        with suppress(OSError):
            for parent in missing:
                parent.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, and yield whether it is: not if another process has it, or if there are no locks."""
    with ExitStack() as stack:
        try:
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except (ImportError, OSError):
            ours = False
        yield ours
