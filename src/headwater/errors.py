"""The errors that a caller can catch.

Every error names the object, the reason and the remedy: `message` says what failed and why, `detail` adds
what the server said, `hint` says what to do. Server errors are distinguished by SQLSTATE, never by their
text, which depends on the server's language.
"""

from __future__ import annotations


class HeadwaterError(Exception):
    """The base of every error that Headwater raises on purpose."""

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
    """An operation needs a session of its own, and the connection goes through a pooler that shares them."""


class NotInstalled(HeadwaterError):
    """The database has no catalog of Headwater."""


class CatalogVersionMismatch(HeadwaterError):
    """The catalog is older or newer than this program."""


class RepairNeeded(HeadwaterError):
    """The database was restored from a dump, so its catalog describes another one; run `headwater repair`."""


class ReadOnlyServer(HeadwaterError):
    """The server is a standby, or read-only; operations that change something need the primary."""


class MissingPrivilege(HeadwaterError):
    """The role lacks a privilege; the hint holds the GRANT."""


class InvalidQuery(HeadwaterError):
    """The server refuses the defining query: syntax, unknown names, types."""


class InvalidSource(HeadwaterError):
    """The query reads something that cannot be a source: a system catalog, a temporary table."""


class InvalidName(HeadwaterError):
    """A name that cannot be used for a stream table."""


class InvalidSetting(HeadwaterError):
    """The setting is unknown, or does not take the value."""


class AlreadyExists(HeadwaterError):
    """A relation of that name exists already."""


class NotFound(HeadwaterError):
    """There is no stream table of that name."""


class CyclicDependency(HeadwaterError):
    """The query would make a stream table depend on itself."""


class DependentsExist(HeadwaterError):
    """Other objects read the stream table that is to be dropped."""


class NotIncremental(HeadwaterError):
    """The query cannot be maintained incrementally, and mode DIFFERENTIAL forbids recomputing it."""


class EngineUnavailable(HeadwaterError):
    """The requested engine cannot run here."""


class EngineFailed(HeadwaterError):
    """The engine failed while it worked: a lost executor, a dead JVM, a full disk. PostgreSQL is unharmed."""


class RefreshFailed(HeadwaterError):
    """A refresh failed; nothing of it was applied."""


class Broken(RefreshFailed):
    """A part of the stream table, or something that it reads, was dropped; the hint has the remedy."""


class RefreshCancelled(RefreshFailed):
    """A refresh was ended by `headwater cancel` or by statement_timeout; nothing of it was applied."""


class ClaimLost(RefreshFailed):
    """The refresh was given to another worker meanwhile; nothing of this one was applied."""


class Suspended(HeadwaterError):
    """The stream table, or one that it reads, is not refreshed until it is resumed."""


class NotRunning(HeadwaterError):
    """There is no running refresh to cancel."""


class DriftDetected(HeadwaterError):
    """The stored rows contradict the change rows: the delta does not fit them."""


class DeltaGivenUp(HeadwaterError):
    """A delta took much longer than recomputing is known to take; nothing of it was applied."""


class DeltaFailed(HeadwaterError):
    """A delta met an error that the query itself need not raise; nothing of it was applied."""


class LockNotAvailable(HeadwaterError):
    """A lock could not be acquired in time; the operation can be repeated."""


class UnsupportedValue(HeadwaterError):
    """A value cannot be represented exactly where it is needed."""


class SnapshotLost(HeadwaterError):
    """The snapshot of a read has ended, so the rest cannot be read at the same snapshot."""


class ConsumerLost(HeadwaterError):
    """The changes that a consumer would read next are no longer kept, or belong to another query."""
