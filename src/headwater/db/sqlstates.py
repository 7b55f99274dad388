"""What a refresh does about an error of the server: one decision for each class of SQLSTATEs.

A delta evaluates expressions for rows that the query itself never has: a term joins a new row with an old one
that never existed at the same time, a condition that hid a row is evaluated after the expression it protects,
a value goes through a temporary table. So it may meet any error that a row can cause, and users' functions
can raise any SQLSTATE. Recomputing through the query decides: if the query raises no error, the stream table
has none; if it raises one, it is the user's.

Recomputing makes no sense where an error says nothing about the data: the connection is gone, somebody
cancelled the refresh, it lost a race, the machine has no room. Those are listed here with a reason. Every
other SQLSTATE, also one that PostgreSQL does not know, leads to recomputing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Response:
    """How a refresh responds to a class of errors that a delta met."""

    recompute: bool
    why: str


def _recompute(why: str) -> Response:
    return Response(True, why)


def _leave(why: str) -> Response:
    return Response(False, why)


RESPONSES: dict[str, Response] = {
    "00": _recompute("no error of the server's own; a function can raise it"),
    "01": _recompute("no error of the server's own; a function can raise it"),
    "02": _recompute("no error of the server's own; a function can raise it"),
    "03": _recompute("not used by the server; a function can raise it"),
    "08": _leave("the connection is lost, and with it the transaction"),
    "09": _recompute("a trigger failed: on storage, or inside a function, for the rows it was given"),
    "0A": _recompute("what a delta asks of the server, or a function does for some value, is not supported"),
    "0B": _recompute("a function tried to control a transaction for some value"),
    "0F": _recompute("a value refers to a large object that cannot be used"),
    "0L": _recompute("a function named a role for some value"),
    "0P": _recompute("a function named a role for some value"),
    "0Z": _recompute("a handler inside a function misused diagnostics for some value"),
    "10": _recompute("an argument of XQuery cannot be used"),
    "20": _recompute("a CASE of PL/pgSQL has no branch for some value"),
    "21": _recompute("a subquery gave several rows, for a row that the query need not have"),
    "22": _recompute("a value that an expression cannot take: the most frequent of all"),
    "23": _recompute("a domain refused a value, or an index on storage two rows of which one is to go"),
    "24": _recompute("a function misused a cursor for some value"),
    "25": _leave("the transaction is read-only, broken, or was open for longer than it may be"),
    "26": _recompute("a function named a prepared statement for some value"),
    "27": _recompute("a trigger changed what was being changed"),
    "28": _leave("a connection was refused"),
    "2B": _recompute("a function changed privileges for some value"),
    "2D": _recompute("a function tried to end the transaction for some value"),
    "2F": _recompute("a function broke its own contract for some value"),
    "34": _recompute("a function named a cursor for some value"),
    "38": _recompute("an external function failed for some value"),
    "39": _recompute("an external function was called, or answered, in a way that it may not be"),
    "3B": _recompute("a function named a savepoint for some value"),
    "3D": _leave("a connection was refused: there is no such database"),
    "3F": _recompute(
        "a delta or a function names a schema that is not there; if it was renamed, it is retried"
    ),
    "40": _leave("it lost a race, and is tried again as it is"),
    "42": _recompute("the server does not understand a delta, or what a function executes for some value"),
    "42501": _leave("the role lacks a privilege; the error names it, and recomputing needs it as well"),
    "44": _recompute("a function wrote to a view for some value"),
    "53": _leave("disk, memory or connections are exhausted, and recomputing takes more of them"),
    "53400": _recompute("a limit for one statement, such as temp_file_limit, which the query may keep"),
    "54": _recompute("a delta is larger than the server takes: columns, nesting, the size of a value"),
    "55": _recompute("a function used what is not ready, such as a record without a value"),
    "55P03": _leave("it waited for a lock for as long as it may, and is tried again as it is"),
    "57": _leave("somebody wants it, or the server, to end"),
    "58": _leave("the system under the server failed, and recomputing writes more to it"),
    "72": _leave("the snapshot is too old; the next refresh has another one"),
    "F0": _leave("the server's configuration cannot be read"),
    "HV": _recompute("a foreign-data wrapper refused what a delta asks, which is not what the query asks"),
    "P0": _recompute("a function of PL/pgSQL raised it for some value"),
    "XX": _recompute("the server failed inside, at what a delta asks or at a change table"),
}
"""By class, or by SQLSTATE where one differs from its class: all of Appendix A of PostgreSQL's manual."""
UNKNOWN = _recompute("not the server's own: a function raised it")


def response(sqlstate: str) -> Response:
    """Return the response to an error that a delta met.

    >>> response("22012").recompute, response("42501").recompute, response("42P01").recompute
    (True, False, True)
    """
    return RESPONSES.get(sqlstate) or RESPONSES.get(sqlstate[:2], UNKNOWN)


def leads_to_recomputing(error: BaseException) -> bool:
    """Tell whether the query must decide about an error; one without a SQLSTATE is not the server's."""
    sqlstate: str | None = getattr(error, "sqlstate", None)
    return response(sqlstate).recompute if sqlstate else False
