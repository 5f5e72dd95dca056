"""Durable bytes: stores, manifests, the files of snapshots, retention and garbage collection."""

from .catalog import Catalog
from .codec import from_json, to_json
from .collect import Garbage, collect_garbage, discard, discard_aborted
from .errors import (
    ChandyError,
    CodecError,
    DamagedError,
    FencedError,
    InvalidKeyError,
    InvalidNameError,
    InvalidUriError,
    ObjectExistsError,
    ObjectMissingError,
    SavepointPlaceError,
    SchemaTooNewError,
    StorageError,
    StoreFailedError,
    UnfencedStoreError,
    UnknownStoreError,
)
from .fencing import Generation
from .files import FileCache
from .keys import validate_name
from .local import LocalStore
from .manifest import CheckpointKind, FileRef, Handle, Manifest, OperatorRecord, QueryRecord
from .manifest_json import decode_manifest, encode_manifest
from .open import open_store, pipeline_uri
from .probe import probe_exclusive_create
from .retention import deletable, dropped
from .savepoint import claim_savepoint, commit_savepoint, discard_savepoint, read_savepoint
from .snapshots import RestoreReport, SnapshotWriter, StoredSnapshot, copy_snapshot, restore_files
from .store import ObjectStat, Store
from .verify import Problem, Report, verify

__all__ = [
    "Catalog",
    "ChandyError",
    "CheckpointKind",
    "CodecError",
    "DamagedError",
    "FencedError",
    "FileCache",
    "FileRef",
    "Garbage",
    "Generation",
    "Handle",
    "InvalidKeyError",
    "InvalidNameError",
    "InvalidUriError",
    "LocalStore",
    "Manifest",
    "ObjectExistsError",
    "ObjectMissingError",
    "ObjectStat",
    "OperatorRecord",
    "Problem",
    "QueryRecord",
    "Report",
    "RestoreReport",
    "SavepointPlaceError",
    "SchemaTooNewError",
    "SnapshotWriter",
    "StorageError",
    "Store",
    "StoreFailedError",
    "StoredSnapshot",
    "UnfencedStoreError",
    "UnknownStoreError",
    "claim_savepoint",
    "collect_garbage",
    "commit_savepoint",
    "copy_snapshot",
    "decode_manifest",
    "deletable",
    "discard",
    "discard_aborted",
    "discard_savepoint",
    "dropped",
    "encode_manifest",
    "from_json",
    "open_store",
    "pipeline_uri",
    "probe_exclusive_create",
    "read_savepoint",
    "restore_files",
    "to_json",
    "validate_name",
    "verify",
]
