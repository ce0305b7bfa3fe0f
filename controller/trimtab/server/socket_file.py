"""The daemon's Unix socket: who may use it, and what becomes of one that lies there already."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import structlog

from trimtab.config import MAX_SOCKET_PATH_BYTES
from trimtab.errors import ConfigError

KEY = "server.socket"
GROUP_KEY = "server.socket_group"
OWNER_ONLY, WITH_GROUP = 0o600, 0o660
DIRECTORY_OWNER_ONLY, DIRECTORY_WITH_GROUP = 0o700, 0o750

log = structlog.get_logger("trimtab")


class SocketFile:
    """Claims a path for one daemon, has it bound with nobody else let in, then admits the group.

    The host's duties, in order: `claim`, `bind`, and `release` at the end. All of them raise `ConfigError`
    that says what to do.

    Args:
        path: Where the socket is to be.
        group: Name or number of the group that may use it; empty for the daemon's user alone.
    """

    def __init__(self, path: Path, group: str = "") -> None:
        self.path = path.absolute()
        self._gid = _group_id(group) if group else None
        self._lock: int | None = None

    @property
    def target(self) -> str:
        """The address as gRPC clients write it."""
        return f"unix:{self.path}"

    def claim(self) -> None:
        """Make the directory, keep other daemons off, and clear away a socket that nobody listens on."""
        if len(os.fsencode(self.path)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(KEY, f"{self.path} is longer than {MAX_SOCKET_PATH_BYTES} bytes: take a shorter path")
        try:
            self._make_directory()
            self._lock = self._take_lock()
            self._clear_stale()
        except OSError as error:
            raise ConfigError(KEY, f"cannot use {self.path}: {error.strerror or error}") from error

    def bind(self, add_port: Callable[[str], object]) -> None:
        """Let gRPC create the socket, out of everybody's reach until its mode and group are set."""
        before = os.umask(0o777 & ~OWNER_ONLY)
        try:
            add_port(self.target)
        except RuntimeError as error:
            raise ConfigError(KEY, f"cannot listen on {self.path}: {error}") from error
        finally:
            os.umask(before)
        if self._gid is not None:
            self._admit(self.path, self._gid, WITH_GROUP)

    def release(self) -> None:
        """Remove the socket and let the next daemon have the path."""
        self.path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_directory(self) -> None:
        directory = self.path.parent
        try:
            directory.mkdir(mode=DIRECTORY_OWNER_ONLY, parents=True)
        except FileExistsError:
            _check_directory(directory)
        else:
            directory.chmod(DIRECTORY_OWNER_ONLY)
            if self._gid is not None:
                self._admit(directory, self._gid, DIRECTORY_WITH_GROUP)
        self._warn_if_closed(directory)

    def _warn_if_closed(self, directory: Path) -> None:
        """A directory that was there before keeps its mode; say so if that locks the group out."""
        status = directory.stat()
        entered = status.st_mode & stat.S_IXOTH or (status.st_gid == self._gid and status.st_mode & stat.S_IXGRP)
        if self._gid is not None and not entered:
            todo = f"chgrp {self._gid} {directory} && chmod g+rx {directory}"
            log.warning("socket_directory_closed_to_group", directory=str(directory), todo=todo)

    def _take_lock(self) -> int:
        """An exclusive lock beside the socket, held until the process ends: two daemons never share a path."""
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, OWNER_ONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise self._taken() from error
        return lock

    def _clear_stale(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not stat.S_ISSOCK(self.path.lstat().st_mode):
            raise ConfigError(KEY, f"{self.path} is there and is no socket: remove it, or take another path")
        if _is_alive(self.path):
            raise self._taken()
        log.info("stale_socket_replaced", path=str(self.path))
        self.path.unlink()

    def _taken(self) -> ConfigError:
        return ConfigError(KEY, f"another process listens on {self.path}: stop it, or take another path with --socket")

    def _admit(self, path: Path, gid: int, mode: int) -> None:
        try:
            os.chown(path, -1, gid)
            path.chmod(mode)
        except PermissionError as error:
            raise ConfigError(
                GROUP_KEY, f"cannot give {path} to group {gid}: the daemon's user must be a member of it"
            ) from error


def _group_id(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigError(GROUP_KEY, f"there is no group {group!r} on this machine") from error


def _check_directory(directory: Path) -> None:
    """Refuse a directory in which somebody else could put a socket of their own in place of ours."""
    status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(KEY, f"{directory} is no directory")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(KEY, f"{directory} belongs to user {status.st_uid}: take a directory of your own")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigError(KEY, f"everybody can write to {directory}: chmod o-w it, or take another directory")


def _is_alive(path: Path) -> bool:
    """Whether somebody listens on this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        code = probe.connect_ex(str(path))
    return code not in (errno.ECONNREFUSED, errno.ENOENT)
