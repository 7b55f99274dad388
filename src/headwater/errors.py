"""What can go wrong, as classes a caller can catch.

Every error names the object, the reason and the remedy: `message` says what failed and why, `detail`
adds what the server said, `hint` says what to do. Server errors are told apart by SQLSTATE, never by
their text, which depends on the server's language.
"""

from __future__ import annotations


class HeadwaterError(Exception):
    """Base of everything Headwater raises on purpose."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)


class ConnectionFailed(HeadwaterError):
    """The database cannot be reached, or the connection broke."""


class SessionNeeded(HeadwaterError):
    """What is asked outlasts a transaction, and the connection goes through a pooler that shares sessions."""


class NotInstalled(HeadwaterError):
    """The database has no catalog of Headwater."""


class CatalogVersionMismatch(HeadwaterError):
    """The catalog is older or newer than this program."""


class RepairNeeded(HeadwaterError):
    """The database was restored from a dump, and its catalog speaks of another one; `headwater repair`."""


class ReadOnlyServer(HeadwaterError):
    """The server is a standby, or read-only; what changes something needs the primary."""


class MissingPrivilege(HeadwaterError):
    """The role may not do what is asked; the hint holds the GRANT."""


class InvalidQuery(HeadwaterError):
    """The server refuses the defining query: syntax, unknown names, types."""


class InvalidSource(HeadwaterError):
    """The query reads something that cannot be a source: a system catalog, a temporary table."""


class InvalidName(HeadwaterError):
    """A name that cannot be used for a stream table."""


class InvalidSetting(HeadwaterError):
    """An unknown setting, or a value that it does not take."""


class AlreadyExists(HeadwaterError):
    """A relation of that name is there already."""


class NotFound(HeadwaterError):
    """No stream table of that name."""


class CyclicDependency(HeadwaterError):
    """The query would make a stream table depend on itself."""


class DependentsExist(HeadwaterError):
    """Other objects read the stream table that is to be dropped."""


class NotIncremental(HeadwaterError):
    """The query cannot be maintained incrementally, and mode DIFFERENTIAL forbids recomputing it."""


class EngineUnavailable(HeadwaterError):
    """The engine that was asked for cannot run here."""


class EngineFailed(HeadwaterError):
    """The engine broke while it worked: a lost executor, a dead JVM, a full disk. PostgreSQL is unharmed."""


class RefreshFailed(HeadwaterError):
    """A refresh failed; nothing of it was applied."""


class Broken(RefreshFailed):
    """A part of the stream table, or something that it reads, was dropped; the hint has the remedy."""


class RefreshCancelled(RefreshFailed):
    """A refresh was ended by `headwater cancel` or by statement_timeout; nothing of it was applied."""


class ClaimLost(RefreshFailed):
    """Another worker was given the refresh meanwhile; nothing of this one was applied."""


class Suspended(HeadwaterError):
    """The stream table, or one that it reads, is not refreshed until it is resumed."""


class NotRunning(HeadwaterError):
    """There is no refresh that could be cancelled."""


class DriftDetected(HeadwaterError):
    """The stored rows contradict the change rows: the delta does not fit what is stored."""


class DeltaGivenUp(HeadwaterError):
    """A delta took longer than recomputing is known to take, by far; nothing of it was applied."""


class DeltaFailed(HeadwaterError):
    """A delta met an error that the query itself need not raise; nothing of it was applied."""


class LockNotAvailable(HeadwaterError):
    """A lock could not be had in time; the operation can be repeated."""


class UnsupportedValue(HeadwaterError):
    """A value that has no exact equal where it is to go."""


class SnapshotLost(HeadwaterError):
    """The snapshot of a read has ended, so that what is left of it cannot be read as it was."""


class ConsumerLost(HeadwaterError):
    """The changes that a consumer was to read next are not kept any more, or are another query's."""
