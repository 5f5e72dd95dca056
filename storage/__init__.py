"""Durable bytes: stores, manifests, the files of snapshots, retention and garbage collection."""

from .catalog import Catalog
from .codec import from_json, to_json
from .collect import Garbage, collect_garbage, discard, discard_aborted
from .errors import (
    ChandyError,
    CodecError,
    CredentialsError,
    DamagedCheckpointError,
    DamagedError,
    FencedError,
    InvalidKeyError,
    InvalidNameError,
    InvalidUriError,
    NothingHereError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    SavepointClaimedError,
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
from .ownership import ClaimedSavepoint, claim_restored, drop_claimed
from .probe import probe_exclusive_create
from .retention import deletable, dropped
from .retrying import Patience, RetryingStore, RetryPolicy, create_surely
from .savepoint import claim_savepoint, commit_savepoint, discard_savepoint, read_savepoint
from .snapshots import RestoreReport, SnapshotWriter, Source, StoredSnapshot, copy_snapshot, restore_files
from .store import ObjectStat, Store
from .uri import join_uri
from .verify import (
    DamagedObject,
    Problem,
    Report,
    damaged_objects,
    missing_object,
    newest_intact,
    verify,
    verify_all,
)

__all__ = [
    "Catalog",
    "ChandyError",
    "CheckpointKind",
    "ClaimedSavepoint",
    "CodecError",
    "CredentialsError",
    "DamagedCheckpointError",
    "DamagedError",
    "DamagedObject",
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
    "NothingHereError",
    "ObjectExistsError",
    "ObjectMissingError",
    "ObjectStat",
    "OperatorRecord",
    "OutcomeUnknownError",
    "Patience",
    "Problem",
    "QueryRecord",
    "Report",
    "RestoreReport",
    "RetryPolicy",
    "RetryingStore",
    "SavepointClaimedError",
    "SavepointPlaceError",
    "SchemaTooNewError",
    "SnapshotWriter",
    "Source",
    "StorageError",
    "Store",
    "StoreFailedError",
    "StoredSnapshot",
    "UnfencedStoreError",
    "UnknownStoreError",
    "claim_restored",
    "claim_savepoint",
    "collect_garbage",
    "commit_savepoint",
    "copy_snapshot",
    "create_surely",
    "damaged_objects",
    "decode_manifest",
    "deletable",
    "discard",
    "discard_aborted",
    "discard_savepoint",
    "drop_claimed",
    "dropped",
    "encode_manifest",
    "from_json",
    "join_uri",
    "missing_object",
    "newest_intact",
    "open_store",
    "pipeline_uri",
    "probe_exclusive_create",
    "read_savepoint",
    "restore_files",
    "to_json",
    "validate_name",
    "verify",
    "verify_all",
]
