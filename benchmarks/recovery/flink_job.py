"""The job that Flink runs, in Flink's own Python: the greatest value of each key, from a folder of CSV files.

``flink_job.py FOLDER``. It is SQL, so no row of it goes through Python. What it prints are the marks: rows at the end
of each file that carry its number, where all others have 0, and that come out of the aggregation behind them.
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
# Only what is known after the aggregation tells a mark from other rows: else Flink would filter before it.
_JOB = """
    INSERT INTO told SELECT mark, k, CHAR_LENGTH(v)
    FROM (SELECT k, MAX(v) AS v, MAX(mark) AS mark FROM source GROUP BY k)
    WHERE mark > 0
"""


def main(folder: str) -> None:
    """Make the job and hand it to the JobManager that runs this program."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.execute_sql(_SOURCE.format(folder=folder))
    tables.execute_sql(_TOLD)
    tables.execute_sql(_JOB)


if __name__ == "__main__":
    main(sys.argv[1])
