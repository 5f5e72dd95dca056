"""The job that Flink runs, in Flink's own Python: the greatest value of each key, from a folder of CSV files.

``flink_job.py FOLDER``. The job is SQL, so no row goes through Python. It prints the marks: rows at the end of each
file that have its number, where all other rows have 0. They leave the aggregation after those rows.
"""

from __future__ import annotations

import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

_SOURCE = """
    CREATE TABLE source (k BIGINT, v STRING, mark BIGINT) WITH (
        'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv', 'source.monitor-interval' = '50 ms'
    )
"""
_TOLD = """
    CREATE TABLE told (mark BIGINT, k BIGINT, size INT) WITH ('connector' = 'print', 'print-identifier' = 'told')
"""
# The filter uses a result of the aggregation. Otherwise Flink would filter before the aggregation.
_JOB = """
    INSERT INTO told SELECT mark, k, CHAR_LENGTH(v)
    FROM (SELECT k, MAX(v) AS v, MAX(mark) AS mark FROM source GROUP BY k)
    WHERE mark > 0
"""


def main(folder: str) -> None:
    """Create the job and submit it to the JobManager that runs this program."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.execute_sql(_SOURCE.format(folder=folder))
    tables.execute_sql(_TOLD)
    tables.execute_sql(_JOB)


if __name__ == "__main__":
    main(sys.argv[1])
