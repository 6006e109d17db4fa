"""Delta, Iceberg and object stores: tables by their own writers, a store on loopback.

A test whose DuckDB extension or writer is missing is skipped;
`scripts/extensions.sh` runs them all.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from poolwise import evaluate
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import PoolwiseError
from poolwise.rows.guard import first_line
from tests.support.reference import assert_same, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolwise.evaluation.results import Evaluation

TABLE: pa.Table = random_table(np.random.default_rng(40), {"a": 30, "b": 20})
STALE: pa.Table = TABLE.set_column(1, "reward", pa.array(np.full(50, 9.0)))
REGION = "us-east-1"


def installed(name: str) -> str:
    """Return the path of an installed extension of DuckDB; empty if it is missing."""
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        query = "SELECT install_path FROM duckdb_extensions() WHERE extension_name = ?"
        rows = connection.execute(f"{query} AND installed", [name]).fetchall()
    return str(rows[0][0]) if rows else ""


def needs(*names: str) -> None:
    for name in [name for name in names if not installed(name)]:
        pytest.skip(f"DuckDB {duckdb.__version__} has no extension {name!r} here")


def writer(name: str) -> Any:  # noqa: ANN401 - a module that may be missing
    return pytest.importorskip(name, reason=f"the package {name!r} is not installed")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without secrets and keys, and with the extensions of the real one."""
    extensions = Path.home() / ".duckdb" / "extensions"
    own = tmp_path / "home"
    (own / ".duckdb").mkdir(parents=True)
    if extensions.is_dir():
        (own / ".duckdb" / "extensions").symlink_to(extensions)
    for name in [name for name in os.environ if name.startswith(("AWS_", "DUCKDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(own))


@pytest.fixture
def expected(tmp_path: Path) -> Evaluation:
    """Evaluate the rows from one Parquet file."""
    pq.write_table(TABLE, tmp_path / "expected.parquet")
    return evaluate(log_of(tmp_path / "expected.parquet"), "t")


def write_delta(place: object, **options: object) -> None:
    """A Delta table in three commits: of the first, no row is left."""
    delta = writer("deltalake")
    delta.write_deltalake(place, STALE, partition_by=["logger"], **options)
    for label in ("a", "b"):
        part = TABLE.filter(pc.equal(TABLE["logger"], label))
        only = {"mode": "overwrite", "predicate": f"logger = '{label}'"}
        delta.write_deltalake(place, part, **only, **options)


def refusal(source: object) -> str:
    """Return the error of a source that cannot be read: one line."""
    with pytest.raises(PoolwiseError) as caught:
        evaluate(log_of(source), "t")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_delta_table_gives_the_rows_of_its_newest_version(
    tmp_path: Path, expected: Evaluation
) -> None:
    needs("delta")
    write_delta(tmp_path / "table")
    found = evaluate(log_of(f"SELECT * FROM delta_scan('{tmp_path}/table')"), "t")
    assert_same(found, expected, rel=1e-12)
    files = evaluate(log_of(tmp_path / "table"), "t")  # what not to do: old rows count, too
    assert dict(files.rows) == {"a": 60, "b": 40}


def test_a_folder_that_is_no_delta_table_is_named_as_such(tmp_path: Path) -> None:
    needs("delta")
    (tmp_path / "table").mkdir()
    assert "no Delta table: check" in refusal(f"SELECT * FROM delta_scan('{tmp_path}/table')")


def write_iceberg(place: object, **options: str) -> Any:  # noqa: ANN401 - of a module that may be missing
    """An Iceberg table of more than one snapshot; of the first, no row is left."""
    sql = writer("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("own", uri="sqlite:///:memory:", warehouse=str(place), **options)
    catalog.create_namespace("logs")
    table = catalog.create_table("logs.log", schema=TABLE.schema)
    table.append(STALE)
    table.overwrite(TABLE)
    catalog.close()
    return table


def test_an_iceberg_table_is_named_by_its_metadata_file(
    tmp_path: Path, expected: Evaluation
) -> None:
    needs("avro", "iceberg")
    iceberg = write_iceberg(tmp_path)
    for path in (iceberg.metadata_location, f"file://{iceberg.metadata_location}"):
        found = evaluate(log_of(f"SELECT * FROM iceberg_scan('{path}')"), "t")
        assert_same(found, expected, rel=1e-12)
    files = evaluate(log_of(f"{iceberg.location()}/data"), "t")  # what not to do
    assert dict(files.rows) == {"a": 60, "b": 40}


def test_an_iceberg_table_is_named_by_its_folder_where_that_has_a_version_hint(
    tmp_path: Path, expected: Evaluation
) -> None:
    needs("avro", "iceberg")
    iceberg = write_iceberg(tmp_path)
    select = f"SELECT * FROM iceberg_scan('{iceberg.location()}')"
    assert "name its newest metadata file" in refusal(select)
    newest = Path(iceberg.metadata_location)
    version = newest.name.removesuffix(".metadata.json")
    newest.with_name("version-hint.text").write_text(version, "utf-8")
    assert_same(evaluate(log_of(select), "t"), expected, rel=1e-12)


def test_the_extension_that_another_one_takes_is_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("iceberg")
    real = Path(installed("iceberg"))
    alone = tmp_path / "alone" / real.parent.parent.name / real.parent.name
    alone.mkdir(parents=True)
    (alone / real.name).symlink_to(real)
    rules = {"autoinstall_known_extensions": False, "extension_directory": f"{tmp_path}/alone"}
    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda config: connect(config=config | rules))
    assert "INSTALL avro once" in refusal("SELECT * FROM iceberg_scan('table')")


@dataclass(frozen=True)
class Store:
    """An object store on this machine with one key."""

    url: str
    key: str
    secret: str

    def remember(self, kind: str = "s3", **changed: str) -> None:
        """Make a persistent secret, as a user does once."""
        given = {"key_id": self.key, "secret": self.secret, "endpoint": self.url[7:]} | changed
        given |= {"region": REGION} if kind == "s3" else {}
        named = "".join(f", {name} '{value}'" for name, value in given.items())
        options = f"TYPE {kind}, USE_SSL false, URL_STYLE 'path'{named}"
        with duckdb.connect() as connection:
            connection.execute("LOAD httpfs")
            connection.execute(f"CREATE PERSISTENT SECRET mine ({options})")

    def variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the variables that DuckDB reads where there is no secret."""
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", self.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", self.secret)
        monkeypatch.setenv("AWS_REGION", REGION)
        monkeypatch.setenv("DUCKDB_S3_ENDPOINT", f"localhost:{self.url.rpartition(':')[2]}")
        monkeypatch.setenv("DUCKDB_S3_USE_SSL", "false")


def ask_for_keys(url: str, after: str) -> None:
    """Have the store check keys after that many requests."""
    plain = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", after.encode(), plain)  # noqa: S310 - loopback
    urllib.request.urlopen(request).close()  # noqa: S310 - loopback


def fill(url: str) -> Store:
    """A bucket with two Parquet files and a CSV, and a key that may read them."""
    keys = {"aws_access_key_id": "first", "aws_secret_access_key": "first"}
    common = {"endpoint_url": url, "region_name": REGION, **keys}
    s3, iam = (writer("boto3").client(name, **common) for name in ("s3", "iam"))
    s3.create_bucket(Bucket="bucket")
    parts = {"logs/1.parquet": TABLE.slice(0, 20), "logs/2.parquet": TABLE.slice(20)}
    for key, part in (parts | {"other/stale.parquet": STALE, "log.csv": TABLE}).items():
        body = io.BytesIO()
        (pcsv.write_csv if key.endswith("csv") else pq.write_table)(part, body)
        s3.put_object(Bucket="bucket", Key=key, Body=body.getvalue())
    allowed = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
    policy = json.dumps({"Version": "2012-10-17", "Statement": allowed})
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=policy)
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    return Store(url, made["AccessKeyId"], made["SecretAccessKey"])


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    needs("httpfs")
    server = writer("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        filled = fill(url)
        ask_for_keys(url, "0")
        yield filled
        ask_for_keys(url, "inf")
    finally:
        server.stop()


SOURCES: dict[str, object] = {
    "a glob": "s3://bucket/logs/*.parquet",
    "a list": ["s3://bucket/logs/1.parquet", "s3://bucket/logs/2.parquet"],
    "CSV": "s3://bucket/log.csv",
    "a SELECT": "SELECT * FROM 's3://bucket/logs/*.parquet'",
}


GOOGLE = "gs://bucket/logs/*.parquet"  # the same to DuckDB, with a secret of another kind


@pytest.mark.parametrize("source", [*SOURCES.values(), GOOGLE], ids=[*SOURCES, "Google"])
def test_a_store_is_read_with_a_persistent_secret(
    source: object, store: Store, expected: Evaluation
) -> None:
    store.remember("gcs" if source == GOOGLE else "s3")
    assert_same(evaluate(log_of(source), "t"), expected, rel=1e-12)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_store_is_read_with_keys_in_the_environment(
    source: object, store: Store, expected: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.variables(monkeypatch)
    assert_same(evaluate(log_of(source), "t"), expected, rel=1e-12)


def test_a_delta_table_in_a_store_takes_a_secret(store: Store, expected: Evaluation) -> None:
    needs("delta")
    keys = {"AWS_ACCESS_KEY_ID": store.key, "AWS_SECRET_ACCESS_KEY": store.secret}
    place = {"AWS_REGION": REGION, "AWS_ENDPOINT_URL": store.url, "AWS_ALLOW_HTTP": "true"}
    write_delta("s3://bucket/table", storage_options=keys | place)
    store.remember()
    found = evaluate(log_of("SELECT * FROM delta_scan('s3://bucket/table')"), "t")
    assert_same(found, expected, rel=1e-12)
    said = refusal("SELECT * FROM delta_scan('s3://nowhere/table')")
    assert said.endswith("/nowhere: there is no such bucket or file")


def test_an_iceberg_table_in_a_store_is_named_by_its_metadata_file(
    store: Store, expected: Evaluation
) -> None:
    needs("avro", "iceberg")
    keys = {"s3.access-key-id": store.key, "s3.secret-access-key": store.secret}
    place = {"s3.endpoint": store.url, "s3.region": REGION}
    table = write_iceberg("s3://bucket/warehouse", **keys, **place)
    store.remember()
    found = evaluate(log_of(f"SELECT * FROM iceberg_scan('{table.metadata_location}')"), "t")
    assert_same(found, expected, rel=1e-12)


NOWHERE = ["s3://nowhere/logs/*.parquet", "s3://nowhere/log.csv", "s3://bucket/logs/3.parquet"]


@pytest.mark.parametrize("source", NOWHERE)
def test_a_bucket_or_file_that_is_not_there_is_told_in_one_line(
    source: str, store: Store
) -> None:
    store.remember()
    answer = (
        f"HTTP 404 for {source.removesuffix('/*.parquet')}: there is no such bucket or file"
    )
    assert refusal(source) == f"cannot read {source!r}: the answer is {answer}"


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("wrong", [{"secret": "wrong"}, {"key_id": "nobody"}])
def test_wrong_credentials_are_told_in_one_line(
    source: object, wrong: dict[str, str], store: Store
) -> None:
    store.remember(**wrong)
    said = refusal(source)
    assert re.search(r"HTTP 403 for \S+: check the credentials, and what they may", said)
    assert store.secret not in said


def test_behind_closed_doors_a_store_opens_what_was_named(store: Store) -> None:
    store.remember()
    with DuckDB().open(log_of("s3://bucket/logs/*.parquet"), {"target": "t"}) as rows:
        for query in (
            "FROM 's3://bucket/other/stale.parquet'",
            f"FROM '{store.url}/bucket/log.csv'",
            "FROM glob('s3://bucket/*')",
            "COPY (SELECT 1) TO 's3://bucket/out.csv'",
        ):
            with pytest.raises(duckdb.PermissionException):
                rows.connection.execute(query)


def run(source: str) -> subprocess.CompletedProcess[str]:
    """Evaluate a source with the program, in a process of its own."""
    roles = ["--reward", "reward", "--logger", "logger", "--propensity", "p"]
    asked = ["evaluate", source, *roles, "--propensities", "a=p_a,b=p_b", "--target", "new=t"]
    program = "from poolwise.cli.commands import main; main()"
    command = [sys.executable, "-c", program, *asked, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line_reads_a_store(store: Store, expected: Evaluation) -> None:
    store.remember()
    done = run("s3://bucket/logs/*.parquet")
    assert (done.returncode, done.stderr) == (0, "")
    (target,) = json.loads(done.stdout)["targets"]
    values = {line["estimator"]: line["value"] for line in target["estimates"]}
    judge = expected["target"].estimates
    assert values == pytest.approx({k: e.value for k, e in judge.items()}, rel=1e-12)


def test_the_command_line_ends_with_2_for_a_bucket_that_is_not_there(store: Store) -> None:
    store.remember()
    done = run("s3://nowhere/logs/*.parquet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("s3://nowhere/logs: there is no such bucket or file\n")
    assert done.stderr.count("\n") == 1


SAID = {
    "HTTP Error: HTTP GET error on 'https://x.org/a.csv?sig=1' (HTTP 404 Not Found)": (
        "the answer is HTTP 404 for https://x.org/a.csv: there is no such bucket or file"
    ),
    "IO Error: Error performing GET http://x.org/a?list=2 - status code: 401 Unauthorized": (
        "the answer is HTTP 401 for http://x.org/a: check the credentials"
    ),
    "HTTP Error: HTTP 404": "the answer is HTTP 404: there is no such bucket or file",
    "CSV Error: the word 'HTTP 404'": "CSV Error: the word 'HTTP 404'",
}


@pytest.mark.parametrize("text", SAID)
def test_the_answer_of_a_store_is_explained(text: str) -> None:
    assert first_line(duckdb.Error(text)) == SAID[text]
