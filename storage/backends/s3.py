"""The store on S3 and on services with the same protocol, through s3fs.

URIs are ``s3://bucket/prefix?option=value&...``, with the options in ``OPTIONS``. Credentials come from where all AWS
tools look: ``AWS_ACCESS_KEY_ID`` and the like, ``AWS_PROFILE``, ``~/.aws``, the role of the machine. They may also come
from fsspec's own configuration (``FSSPEC_S3_KEY``, ``~/.config/fsspec``), which may set any argument of
``s3fs.S3FileSystem``. Secrets in a URI are refused. The executors' machines need the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

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
from typing_extensions import override

from ..errors import NotDeletedError, ObjectExistsError, ObjectMissingError, StoreFailedError
from ..keys import validate_key
from ..store import ObjectStat, Store, delete_each
from ..transfer import PART, PARTS_AT_A_TIME
from ..uri import StoreUri, invalid_uri
from .clients import check_client
from .fsspec_store import FsspecStore

OPTIONS = {
    "endpoint": "URL of a service other than AWS; also AWS_ENDPOINT_URL_S3",
    "region": "also AWS_REGION",
    "profile": "of ~/.aws; also AWS_PROFILE",
    "addressing": "path, virtual or auto (the default): where the URL has the bucket's name",
    "sse": "AES256, aws:kms or aws:kms:dsse: how the service encrypts objects",
    "sse_kms_id": "which KMS id it encrypts with",
    "requester_pays": "true: the bucket's owner does not pay",
    "anonymous": "true: without credentials, to read what is public",
}
"""The options of a URI and what they mean."""

DELETE_AT_ONCE = 1000
"""The most objects that S3 deletes with one request."""

GIVE_CREDENTIALS = (
    "give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, by a profile of ~/.aws (AWS_PROFILE, or the "
    "option `profile` of the URI) or by the role of the machine, and do the same on the executors' machines; to read "
    "what is public, use the option `anonymous=true`"
)
"""What a user can do about missing credentials."""

_CREDENTIALS_ERRORS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    ProfileNotFound,
    SSOError,
)

_ATTEMPT = "chandy-attempt"
"""Metadata of an object: a random name of the call that has created it."""

_COPY_AT_ONCE = 5 << 30
"""The most bytes that S3 copies with one request."""

_PASSING_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "NoSuchUpload",
    "ExpiredToken",
    "ExpiredTokenException",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_OVER_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
"""Said of credentials that were good once, or never were. Those that have expired may be new at the next attempt."""


def open_uri(uri: str) -> Store:
    """Open ``s3://bucket/prefix``, or the same with ``s3a://``."""
    parts = StoreUri.parse(uri)
    check_client("s3fs", str(parts))
    if not parts.authority:
        raise invalid_uri(uri, "s3://bucket/prefix", "no bucket")
    parts.check_options(*OPTIONS)
    return S3Store(StoreUri("s3", parts.authority, parts.path, parts.options))


class S3Store(FsspecStore):
    """Keeps objects below a prefix of a bucket. ``create`` is ``PutObject`` with ``If-None-Match: *``."""

    def __init__(self, uri: StoreUri) -> None:
        self._options = uri.options
        root = f"{uri.authority}/{uri.path}" if uri.path else uri.authority
        super().__init__(str(uri), lambda: _connect(uri.options), root, fenced=True)
        self._bucket, self._prefix = uri.authority, f"{uri.path}/" if uri.path else ""

    @override
    def afresh(self) -> Store:
        other = copy(self)
        other._connect, other._connected = lambda: _file_system(dict(self._options)), None
        return other

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        try:
            # s3fs reads at once if it has a start. Without one it would first ask for the size.
            return super().read(key, offset, length)
        except StoreFailedError as error:
            if _code(error) in ("InvalidRange", "416"):
                return b""
            raise

    @override
    def create(self, key: str, data: bytes) -> None:
        if not data:
            # s3fs writes an empty object without the condition.
            raise ValueError("cannot create an empty object: expected at least one byte, found none")
        # When a connection breaks that was used before, aiohttp sends a PUT once more by itself. If the first one had
        # arrived, the second one finds its object.
        attempt = uuid4().hex
        try:
            with self._explained("create", key):
                self.fs.pipe_file(self._path(key), data, mode="create", Metadata={_ATTEMPT: attempt})
        except ObjectExistsError:
            if self._attempt(key) != attempt:
                raise

    def _attempt(self, key: str) -> str | None:
        """Return which call of ``create`` has made an object."""
        with suppress(ObjectMissingError), self._explained("look at", key):
            answer = self.fs.call_s3("head_object", Bucket=self._bucket, Key=self._name(key))
            return cast(str | None, answer.get("Metadata", {}).get(_ATTEMPT))
        return None

    @override
    def upload(self, path: Path, key: str) -> None:
        with self._explained("upload", key):
            self.fs.put_file(
                str(path), self._path(key), chunksize=_part_size(path), max_concurrency=PARTS_AT_A_TIME
            )

    @override
    def copy(self, source: Store, source_key: str, key: str) -> bool:
        if not isinstance(source, S3Store) or source._options != self._options:
            return False
        with source._explained("copy", source_key):
            place = {"Bucket": source._bucket, "Key": source._name(source_key)}
            try:
                self.fs.call_s3("copy_object", Bucket=self._bucket, Key=self._name(key), CopySource=place)
            except OSError as error:
                if _code(error) not in ("InvalidRequest", "EntityTooLarge"):
                    raise
                # The object is too large for one request. The service copies it in parts.
                if source.stat(source_key).size <= _COPY_AT_ONCE:
                    raise
                self.fs.cp_file(source._path(source_key), self._path(key))
        return True

    @override
    def delete_all(self, keys: Collection[str]) -> None:
        failed: dict[str, StoreFailedError] = {}
        ordered = list(keys)
        for begin in range(0, len(ordered), DELETE_AT_ONCE):
            some = ordered[begin : begin + DELETE_AT_ONCE]
            try:
                failed |= self._delete_at_once(some)
            except StoreFailedError as error:
                failed |= dict.fromkeys(some, error)
        if failed:
            raise NotDeletedError.of(self.uri, failed)

    def _delete_at_once(self, keys: Sequence[str]) -> dict[str, StoreFailedError]:
        """Delete objects with one request, and return why some were not, by key."""
        with self._explained("delete", keys[0]):
            answer = self.fs.call_s3(
                "delete_objects",
                Bucket=self._bucket,
                Delete={"Objects": [{"Key": self._name(key)} for key in keys], "Quiet": True},
            )
        failed = {}
        for error in answer.get("Errors", ()):
            key, code = error.get("Key", "?").removeprefix(self._prefix), error.get("Code", "?")
            failed[key] = StoreFailedError(self.uri, key, "delete", code, code in _PASSING_CODES)
        return failed

    @override
    def stat(self, key: str) -> ObjectStat:
        with self._explained("look at", key):
            answer = self.fs.call_s3("head_object", Bucket=self._bucket, Key=self._name(key))
        return ObjectStat(answer["ContentLength"], answer["LastModified"].timestamp())

    @override
    def sweep(self, before: float) -> None:
        """Abort the multipart uploads that nobody finished. Their parts cost money until then."""
        with suppress(ObjectMissingError), self._explained("sweep", ""):
            # A service without multipart uploads may answer with an error.
            uploads = {
                upload["UploadId"]: upload["Key"]
                for upload in self._uploads()
                if upload["Initiated"].timestamp() < before
            }

            def abort(upload: str) -> None:
                key = uploads[upload]
                # Its writer may have finished it meanwhile.
                with suppress(ObjectMissingError), self._explained("sweep", key):
                    self.fs.call_s3("abort_multipart_upload", Bucket=self._bucket, Key=key, UploadId=upload)

            delete_each(self.uri, uploads, abort)

    def _uploads(self) -> Iterator[dict[str, Any]]:
        """Yield the multipart uploads that nobody has finished. The service lists up to 1,000 of them at a time."""
        marker: dict[str, str] = {}
        while True:
            answer = self.fs.call_s3(
                "list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix, **marker
            )
            yield from answer.get("Uploads", ())
            if not answer.get("IsTruncated"):
                return
            marker = {
                "KeyMarker": answer["NextKeyMarker"],
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }

    @override
    def is_transient(self, error: Exception) -> bool:
        found = _client_error(error)
        if isinstance(found, ClientError):
            status = found.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status >= 500 or status in (408, 429) or _code(found) in _PASSING_CODES
        if isinstance(found, BotoCoreError):
            return isinstance(found, (HTTPClientError, BotoConnectionError))
        # aiohttp has errors of its own, and all of them concern the connection.
        return super().is_transient(error) or type(error).__module__.startswith("aiohttp")

    @override
    def failure(self, key: str, operation: str, error: Exception) -> StoreFailedError:
        found = _client_error(error)
        is_missing = isinstance(found, _CREDENTIALS_ERRORS)
        if is_missing or _code(error) in _OVER_CODES:
            # A client looks for credentials once. A new one finds those that this process is given meanwhile.
            _connected.pop(_place(self._options), None)
            with self._lock:
                self._connected = None
        if is_missing:
            return StoreFailedError(self.uri, key, operation, str(found), advice=GIVE_CREDENTIALS)
        return super().failure(key, operation, error)

    @override
    def why_all_is_missing(self, error: FileNotFoundError) -> str | None:
        if _code(error) == "NoSuchBucket":
            return f"there is no bucket {self._bucket!r}"
        return None

    def _name(self, key: str) -> str:
        return self._prefix + validate_key(key)

    @override
    def _find(self, prefix: str) -> Sequence[dict[str, Any]]:
        return list(self.fs.find(self.root, prefix=prefix, detail=True).values())

    @override
    def _pipe(self, key: str, data: bytes, **mode: str) -> None:
        self.fs.pipe_file(self._path(key), data, **mode)


_connected: dict[tuple[int, frozenset[tuple[str, str]]], Any] = {}


def _place(options: Mapping[str, str]) -> tuple[int, frozenset[tuple[str, str]]]:
    return os.getpid(), frozenset(options.items())


def _connect(options: Mapping[str, str]) -> Any:
    """Return this process's file system for these options. Making one takes a tenth of a second."""
    place = _place(options)
    if (made := _connected.get(place)) is None:
        made = _connected[place] = _file_system(dict(options))
    return made


def _file_system(options: dict[str, str]) -> Any:
    # Arguments replace those of fsspec's configuration, so its dictionaries are extended here.
    configured = conf.get("s3", {})
    config = {
        # ``RetryingStore`` retries, not boto: a create that boto repeats finds its own object and takes it for
        # somebody else's.
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # Chandy checks SHA-256 itself, and some services answer ranges with the checksum of the whole object.
        "response_checksum_validation": "when_required",
        "max_pool_connections": 32,
        **configured.get("config_kwargs", {}),
    }
    if addressing := options.get("addressing"):
        config["s3"] = {**config.get("s3", {}), "addressing_style": addressing}
    client = dict(configured.get("client_kwargs", {}))
    if region := options.get("region"):
        client["region_name"] = region
    encryption = dict(configured.get("s3_additional_kwargs", {}))
    if sse := options.get("sse"):
        encryption["ServerSideEncryption"] = sse
    if kms := options.get("sse_kms_id"):
        encryption["SSEKMSKeyId"] = kms
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
        s3_additional_kwargs=encryption,
        **named,
    )
    made.retries = 1
    return made


def _part_size(path: Path) -> int:
    # S3 allows at most 10,000 parts.
    return max(PART, -(-path.stat().st_size // 9_000))


def _client_error(error: BaseException | None) -> ClientError | BotoCoreError | None:
    """Return the error that boto raised, which s3fs turned into its own."""
    while error is not None and not isinstance(error, (ClientError, BotoCoreError)):
        error = error.__cause__
    return error


def _code(error: BaseException | None) -> str:
    found = _client_error(error)
    return str(found.response.get("Error", {}).get("Code", "")) if isinstance(found, ClientError) else ""
