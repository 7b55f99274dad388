"""The parameters of each verb, except those that measure (see `bench_commands`); for the rest see `verb`."""

from __future__ import annotations

from typing import get_args

import click

from headwater.catalog.choices import BucketLength, EngineName, Mode, Tier
from headwater.cli.options import (
    DEBUG,
    DSN,
    ENGINE,
    NAME,
    OPTIONAL_NAME,
    PRIVATE_DSN,
    SHARED,
    SPARK,
    flag,
    number,
)
from headwater.cli.verb import Verb

FILE = click.Option(["--file"], type=click.File("rb"), help="A file with the query; - for standard input.")
MODE = click.Option(["--mode"], type=click.Choice(get_args(Mode)), help="How it is kept fresh.")
SCHEDULE = click.Option(
    ["--schedule"],
    metavar="SCHEDULE",
    help="How fresh it should be: 500ms, 1s, 5m, 1h; a cron expression; calculated, from those who read it.",
)
TIER = click.Option(
    ["--tier"],
    type=click.Choice(("auto", *get_args(Tier))),
    help="Refresh it as scheduled (hot), half as often (warm), a tenth as often (cold), or never (frozen).",
)
CASCADE = flag("--cascade", "Drop stream tables and consumers that do not fit the new columns.")
LIMIT = number("--limit", 20, "How many.")
LOG = (
    click.Option(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        default="text",
        help="One line for each event.",
    ),
    click.Option(["--log-level"], type=click.Choice(["debug", "info", "warning", "error"]), default="info"),
)

SETTING_UP = (
    Verb(
        "init",
        "setup:init",
        """Install the catalog in a database.

        With --check nothing is changed: every privilege is listed with the GRANT for those that are missing.
        The exit code is 1 if one is missing that Headwater cannot do without; those on single schemas and
        tables are needed only where these are to be used.

        \b
        Example: headwater init --check
        """,
        flag("--check", "Install nothing; list the privileges that are needed."),
        *SHARED,
    ),
    Verb(
        "migrate",
        "installation:migrate",
        """Bring the catalog of an older version up to date.

        \b
        Example: headwater migrate
        """,
        *SHARED,
    ),
    Verb(
        "repair",
        "installation:repair",
        """Make stream tables follow their queries again after a restore from a dump.

        Also after DROP … CASCADE took something of theirs along, once that is there again. What is intact is
        left alone; the exit code is 1 if something could not be repaired.

        \b
        Example: headwater repair
        """,
        *SHARED,
    ),
    Verb(
        "set",
        "setup:set_",
        """Store a setting in the database.

        \b
        Example: headwater set max_buffer_rows 500000
        """,
        NAME,
        click.Argument(["value"]),
        *SHARED,
    ),
    Verb(
        "settings",
        "setup:settings",
        """Show every setting, its value and where that comes from.

        \b
        Example: headwater settings
        """,
        *SHARED,
    ),
    Verb(
        "uninstall",
        "installation:uninstall",
        """Remove everything of Headwater from a database.

        Stream tables go with their rows; the tables that they read stay as they are, without triggers. It
        works on what is left of an installation, whatever its version. What is in Headwater's schemas and not
        of its making stays.

        \b
        Example: headwater uninstall --yes
        """,
        flag("--yes", "Do not ask."),
        flag("--cascade", "Drop views of yours that read stream tables, too."),
        *SHARED,
    ),
    Verb(
        "demo",
        "demo:demo",
        """Show stream tables at work on a private PostgreSQL and a private Spark.

        It uses a database of yours only if --dsn names it, never the one in the environment.

        \b
        Example: headwater demo --seconds 30
        """,
        click.Option(
            ["--seconds"],
            type=click.FloatRange(min=0, min_open=True),
            default=60,
            show_default=True,
            help="How long.",
        ),
        PRIVATE_DSN,
        click.Option(
            ["--engine"],
            type=click.Choice(get_args(EngineName)),
            default="spark",
            show_default=True,
            help="What computes the large stream table; postgres does without Spark.",
        ),
        DEBUG,
    ),
)

STREAM_TABLES = (
    Verb(
        "create",
        "stream_tables:create",
        """Create a stream table from a query and load it.

        With --or-replace, a stream table of that name gets the query and the options in place: readers see
        the old rows until they see the new ones.

        \b
        Example: headwater create revenue --query "SELECT region, sum(amount) FROM sales GROUP BY region"
        """,
        NAME,
        click.Option(["--query"], metavar="SQL", help="The defining query."),
        FILE,
        SCHEDULE,
        MODE,
        ENGINE,
        TIER,
        flag("--if-not-exists", "Do nothing if there is a stream table of that name."),
        flag("--or-replace", "Give the stream table of that name, if any, this query."),
        CASCADE,
        *SPARK,
        *SHARED,
    ),
    Verb(
        "alter",
        "stream_tables:alter",
        """Change the query, schedule, mode, engine or tier of a stream table.

        Another query is put in place: readers see the old rows until they see the new ones.

        \b
        Example: headwater alter revenue --schedule 5s
        """,
        NAME,
        click.Option(["--query"], metavar="SQL", help="Another defining query."),
        FILE,
        SCHEDULE,
        flag("--no-schedule", "Refresh only when asked to."),
        MODE,
        ENGINE,
        TIER,
        CASCADE,
        *SPARK,
        *SHARED,
    ),
    Verb(
        "drop",
        "stream_tables:drop",
        """Drop a stream table.

        \b
        Example: headwater drop revenue
        """,
        NAME,
        flag("--cascade", "Drop also what reads it."),
        flag("--if-exists", "Do nothing if there is no stream table of that name."),
        *SHARED,
    ),
    Verb(
        "refresh",
        "stream_tables:refresh",
        """Bring a stream table, and those it reads, up to date.

        \b
        Example: headwater refresh revenue
        """,
        NAME,
        flag("--full", "Recompute it from its query."),
        ENGINE,
        *SPARK,
        *SHARED,
    ),
    Verb(
        "cancel",
        "control:cancel",
        """Cancel the refresh of a stream table that runs now.

        It ends with an error that says so, and nothing of it is applied. The exit code is 1 if none is
        running.

        \b
        Example: headwater cancel revenue
        """,
        NAME,
        *SHARED,
    ),
    Verb(
        "suspend",
        "stream_tables:suspend",
        """Stop refreshing a stream table until it is resumed.

        Its sources are captured all the same, and it keeps its rows. What reads it is not refreshed either.

        \b
        Example: headwater suspend revenue --reason "the nightly load runs"
        """,
        NAME,
        click.Option(["--reason"], metavar="TEXT", help="Why, for those who wonder."),
        *SHARED,
    ),
    Verb(
        "resume",
        "stream_tables:resume",
        """Refresh a suspended stream table again; without a name, end drain.

        \b
        Example: headwater resume revenue
        """,
        OPTIONAL_NAME,
        *SHARED,
    ),
    Verb(
        "drain",
        "control:drain",
        """Have the service begin no more refreshes in this database.

        Those that run are finished, and capture goes on. It stays so until headwater resume.

        \b
        Example: headwater drain
        """,
        *SHARED,
    ),
)

SERVING = (
    Verb(
        "serve",
        "serve:serve",
        """Keep all stream tables of a server fresh, until stopped.

        Looks for databases with a catalog every 10 s and keeps each stream table within its schedule. A
        second one waits to take over. SIGTERM ends it when what runs is finished.

        \b
        Example: headwater serve --log-format json
        """,
        click.Option(
            ["--database", "databases"],
            multiple=True,
            metavar="NAME",
            help="Serve only this one; may be repeated.",
        ),
        *LOG,
        *SPARK,
        *DSN,
    ),
    Verb(
        "worker",
        "worker:worker",
        """Refresh for the service of a database, from this machine, until stopped.

        Keeps no state: any number may come, go or be killed. Without any, the service refreshes by itself.

        \b
        Example: headwater worker --jobs 2 --spark-master spark://host:7077
        """,
        number("--jobs", 1, "Refreshes at once.", most=64),
        *LOG,
        *SPARK,
        *DSN,
    ),
)

LOOKING = (
    Verb(
        "list",
        "inspect:list_",
        """List the stream tables.

        \b
        Example: headwater list --format json
        """,
        *SHARED,
    ),
    Verb(
        "status",
        "status:status",
        """Show how fresh stream tables are, and what waits for them.

        With --watch the most interesting ones come first, as many as there are lines; with --format json each
        second is a document on a line of its own.

        \b
        Example: headwater status --watch
        """,
        OPTIONAL_NAME,
        flag("--watch", "Update it each second until Ctrl-C, with the service and what runs."),
        *SHARED,
    ),
    Verb(
        "history",
        "inspect:history",
        """Show the latest refreshes, newest first.

        Single deltas are forgotten after a while; sums by the minute and by the hour are kept for longer.

        \b
        Example: headwater history revenue --limit 5
        """,
        OPTIONAL_NAME,
        LIMIT,
        click.Option(
            ["--by"],
            type=click.Choice(get_args(BucketLength)),
            help="Show sums by minute or hour instead.",
        ),
        *SHARED,
    ),
    Verb(
        "explain",
        "plans:explain",
        """Show what a refresh does, and why: operators, rules and SQL.

        \b
        Example: headwater explain revenue
        """,
        NAME,
        click.Option(["--compiled"], is_flag=True, help="Print the function that takes small changes."),
        *SHARED,
    ),
    Verb(
        "verify",
        "plans:verify",
        """Compare a stream table with its query; exit code 1 if they differ.

        \b
        Example: headwater verify revenue
        """,
        NAME,
        *SHARED,
    ),
    Verb(
        "audits",
        "inspect:audits",
        """Show where stream tables, or their plans, were found to differ from their queries, newest first.

        \b
        Example: headwater audits --format json
        """,
        OPTIONAL_NAME,
        LIMIT,
        *SHARED,
    ),
)
