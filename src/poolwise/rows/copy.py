"""Copy: DuckDB writes rows to a Parquet file, and an interrupt stops it cleanly.

An exception of a signal handler that ends a COPY in the main thread can leave its other
threads waiting for ever.  So another thread runs it, and DuckDB is asked to stop.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

ASK_AGAIN = 0.05  # seconds; a request is lost if the statement has not begun


def copy_rows(connection: duckdb.DuckDBPyConnection, relation: str, file: str) -> str:
    """Write the rows of a relation to a Parquet file; return the relation that reads it.

    Args:
        connection: DuckDB.
        relation: The rows.
        file: The path, as a literal of SQL.
    """
    statement = f"COPY (FROM {relation}) TO {file} (FORMAT parquet)"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(connection.execute, statement)
        try:
            running.result()
        except BaseException:
            while not running.done():
                connection.interrupt()
                wait([running], ASK_AGAIN)
            raise
    return f"read_parquet({file})"
