"""The service: what keeps stream tables within their schedules by itself.

`launcher` starts one scheduler for each database, `scheduler` decides what is refreshed when, `executor` has
the threads of a scheduler or worker that do it, `queue` is how jobs get to workers on other machines, and
`worker` is such a worker. The rules are in `headwater.scheduling`, without a clock or a database.
"""
