"""The store on S3 and on what speaks its protocol, through s3fs.

``s3://bucket/prefix?option=value&...`` with the options of ``OPTIONS``. Credentials come as every AWS tool has them:
``AWS_ACCESS_KEY_ID`` and its like, ``AWS_PROFILE``, ``~/.aws``, the role of the machine; or from fsspec's own
configuration (``FSSPEC_S3_KEY``, ``~/.config/fsspec``), which may give any argument of ``s3fs.S3FileSystem``. A
secret in a URI is refused. What the environment says must be so on the machines of the executors, too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import s3fs
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from fsspec.config import conf

from .errors import CredentialsError, InvalidUriError, ObjectMissingError, StoreFailedError
from .fsspec_store import FsspecStore
from .keys import validate_key
from .store import ObjectStat, Store
from .transfer import PART, PARTS_AT_A_TIME
from .uri import StoreUri

OPTIONS = {
    "endpoint": "URL of a service other than AWS; also AWS_ENDPOINT_URL_S3",
    "region": "also AWS_REGION",
    "profile": "of ~/.aws; also AWS_PROFILE",
    "addressing": "path, virtual or auto (the default): where the bucket's name stands",
    "sse": "AES256, aws:kms or aws:kms:dsse: how the service encrypts objects",
    "sse_kms_id": "which KMS id it encrypts with",
    "requester_pays": "true: the bucket's owner does not pay",
    "anonymous": "true: without credentials, to read what is public",
}
"""Options of a URI, and what they mean."""

DELETE_AT_ONCE = 1000
"""Objects that one request deletes at most, as S3 has it."""

CREDENTIALS = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, by a profile of ~/.aws (AWS_PROFILE, or the option `profile` of the "
    "URI) or by the role of the machine, and on the executors' machines in the same way; what is public can be read "
    "with the option `anonymous=true`"
)
"""Where credentials may come from."""

_NOT_CREDENTIALS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    ProfileNotFound,
    SSOError,
)

_COPY_AT_ONCE = 5 << 30
"""Bytes that one request copies at most, as S3 has it."""

_PASSING_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "NoSuchUpload",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}


def open_uri(uri: str) -> Store:
    """Open ``s3://bucket/prefix``; ``s3a://`` is the same."""
    parts = StoreUri.parse(uri)
    if not parts.authority:
        raise InvalidUriError(uri, "expected s3://bucket/prefix")
    parts.only(*OPTIONS)
    return S3Store(StoreUri("s3", parts.authority, parts.path, parts.options))


class S3Store(FsspecStore):
    """Objects below a prefix of a bucket. ``create`` is ``PutObject`` with ``If-None-Match: *``."""

    def __init__(self, uri: StoreUri) -> None:
        self._options = uri.options
        root = f"{uri.authority}/{uri.path}" if uri.path else uri.authority
        super().__init__(str(uri), lambda: _connect(uri.options), root, fenced=True)
        self._bucket, self._prefix = uri.authority, f"{uri.path}/" if uri.path else ""

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``."""
        try:
            # With a start, s3fs asks at once; without one it would ask for the size first.
            return super().read(key, offset, length)
        except StoreFailedError as error:
            if _code(error) in ("InvalidRange", "416"):
                return b""
            raise

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet; ``data`` must not be empty."""
        if not data:
            # s3fs writes an empty object without its condition.
            raise ValueError("expected some bytes to create an object with, found none")
        super().create(key, data)

    def upload(self, path: Path, key: str) -> None:
        """Store a local file, in several parts at a time if it is large."""
        with self._explained("upload", key):
            self.fs.put_file(
                str(path), self._path(key), chunksize=_part_size(path), max_concurrency=PARTS_AT_A_TIME
            )

    def copy(self, source: Store, source_key: str, key: str) -> bool:
        """Copy an object inside the service."""
        if not isinstance(source, S3Store) or source._options != self._options:
            return False
        with source._explained("copy", source_key):
            place = {"Bucket": source._bucket, "Key": source._name(source_key)}
            try:
                self.fs.call_s3("copy_object", Bucket=self._bucket, Key=self._name(key), CopySource=place)
            except OSError as error:
                if _code(error) not in ("InvalidRequest", "EntityTooLarge"):
                    raise
                # More than one request copies: in parts, still inside the service.
                if source.stat(source_key).size <= _COPY_AT_ONCE:
                    raise
                self.fs.cp_file(source._path(source_key), self._path(key))
        return True

    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects, a thousand with one request."""
        ordered = list(keys)
        for begin in range(0, len(ordered), DELETE_AT_ONCE):
            some = ordered[begin : begin + DELETE_AT_ONCE]
            with self._explained("delete", some[0]):
                answer = self.fs.call_s3(
                    "delete_objects",
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": self._name(key)} for key in some], "Quiet": True},
                )
            for failed in answer.get("Errors", ()):
                key, code = failed.get("Key", "?").removeprefix(self._prefix), failed.get("Code", "?")
                raise StoreFailedError(self.uri, key, "delete", code, code in _PASSING_CODES)

    def stat(self, key: str) -> ObjectStat:
        """Return size and age of an object."""
        with self._explained("look at", key):
            answer = self.fs.call_s3("head_object", Bucket=self._bucket, Key=self._name(key))
        return ObjectStat(answer["ContentLength"], answer["LastModified"].timestamp())

    def sweep(self, before: float) -> None:
        """Give up the uploads in parts that nobody has finished: their parts cost money until then."""
        with suppress(ObjectMissingError), self._explained("sweep", ""):
            # A service that has none may say so by an error.
            answer = self.fs.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix)
            for upload in answer.get("Uploads", ()):
                if upload["Initiated"].timestamp() < before:
                    # Somebody may have finished it meanwhile.
                    with suppress(FileNotFoundError):
                        self.fs.call_s3(
                            "abort_multipart_upload",
                            Bucket=self._bucket,
                            Key=upload["Key"],
                            UploadId=upload["UploadId"],
                        )

    def is_transient(self, error: Exception) -> bool:
        """Whether an error may go away by itself: the connection's, the service's own, or too many requests."""
        found = _client_error(error)
        if isinstance(found, ClientError):
            status = found.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status >= 500 or status in (408, 429) or _code(found) in _PASSING_CODES
        if isinstance(found, BotoCoreError):
            return isinstance(found, (HTTPClientError, BotoConnectionError))
        # aiohttp's errors are of its own kind; they all are of the connection.
        return super().is_transient(error) or type(error).__module__.startswith("aiohttp")

    def failure(self, key: str, operation: str, error: Exception) -> StoreFailedError:
        """Return what to raise for an error of boto's."""
        found = _client_error(error)
        if not isinstance(found, _NOT_CREDENTIALS):
            return super().failure(key, operation, error)
        # A client looks for them once; whoever has been told to give some may do so in this process.
        _connected.pop(_place(self._options), None)
        with self._lock:
            self._connected = None
        return CredentialsError(self.uri, key, operation, str(found), sources=CREDENTIALS)

    def why_all_is_missing(self, error: FileNotFoundError) -> str | None:
        """Return why not only the object is not there, but its bucket."""
        if _code(error) == "NoSuchBucket":
            return f"there is no bucket {self._bucket!r}"
        return None

    def _name(self, key: str) -> str:
        return self._prefix + validate_key(key)

    def _find(self, prefix: str) -> Sequence[dict[str, Any]]:
        return list(self.fs.find(self.root, prefix=prefix, detail=True).values())

    def _pipe(self, key: str, data: bytes, **mode: str) -> None:
        self.fs.pipe_file(self._path(key), data, **mode)


_connected: dict[tuple[int, frozenset[tuple[str, str]]], Any] = {}


def _place(options: Mapping[str, str]) -> tuple[int, frozenset[tuple[str, str]]]:
    return os.getpid(), frozenset(options.items())


def _connect(options: Mapping[str, str]) -> Any:
    """Return the file system for these options, one in each process: what makes it takes a tenth of a second."""
    place = _place(options)
    if (made := _connected.get(place)) is None:
        made = _connected[place] = _file_system(dict(options))
    return made


def _file_system(options: dict[str, str]) -> Any:
    # Arguments that are given here replace those of fsspec's configuration: these have to be added to.
    configured = conf.get("s3", {})
    config = {
        # What goes wrong is tried again in one place, and that is not here: a create that boto repeats finds
        # its own object and takes it for another's.
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # Every byte is verified against SHA-256; some services answer ranges with the whole object's checksum.
        "response_checksum_validation": "when_required",
        "max_pool_connections": 32,
        **configured.get("config_kwargs", {}),
    }
    if addressing := options.get("addressing"):
        config["s3"] = {**config.get("s3", {}), "addressing_style": addressing}
    client = dict(configured.get("client_kwargs", {}))
    if region := options.get("region"):
        client["region_name"] = region
    extra = dict(configured.get("s3_additional_kwargs", {}))
    if sse := options.get("sse"):
        extra["ServerSideEncryption"] = sse
    if kms := options.get("sse_kms_id"):
        extra["SSEKMSKeyId"] = kms
    named: dict[str, Any] = {}
    if endpoint := options.get("endpoint"):
        named["endpoint_url"] = endpoint
    if profile := options.get("profile"):
        named["profile"] = profile
    for option, name in (("requester_pays", "requester_pays"), ("anonymous", "anon")):
        if option in options:
            named[name] = options[option].lower() == "true"
    made = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs=config,
        client_kwargs=client,
        s3_additional_kwargs=extra,
        **named,
    )
    made.retries = 1
    return made


def _part_size(path: Path) -> int:
    # At most 10,000 parts.
    return max(PART, -(-path.stat().st_size // 9_000))


def _client_error(error: BaseException | None) -> ClientError | BotoCoreError | None:
    """Return what boto raised first, behind what s3fs made of it."""
    while error is not None and not isinstance(error, (ClientError, BotoCoreError)):
        error = error.__cause__
    return error


def _code(error: BaseException | None) -> str:
    found = _client_error(error)
    return str(found.response.get("Error", {}).get("Code", "")) if isinstance(found, ClientError) else ""
