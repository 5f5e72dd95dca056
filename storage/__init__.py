"""Durable bytes: stores, manifests, the files of snapshots, retention and garbage collection.

Names are imported when they are first used: tasks and state hosts start through this package, and use little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import importer

if TYPE_CHECKING:
    from .catalog import Catalog as Catalog
    from .codec import from_json as from_json
    from .codec import to_json as to_json
    from .collect import Garbage as Garbage
    from .collect import collect_garbage as collect_garbage
    from .collect import discard as discard
    from .collect import discard_aborted as discard_aborted
    from .errors import ChandyError as ChandyError
    from .errors import CodecError as CodecError
    from .errors import CredentialsError as CredentialsError
    from .errors import DamagedCheckpointError as DamagedCheckpointError
    from .errors import DamagedError as DamagedError
    from .errors import FencedError as FencedError
    from .errors import InvalidKeyError as InvalidKeyError
    from .errors import InvalidNameError as InvalidNameError
    from .errors import InvalidUriError as InvalidUriError
    from .errors import NothingHereError as NothingHereError
    from .errors import ObjectExistsError as ObjectExistsError
    from .errors import ObjectMissingError as ObjectMissingError
    from .errors import OutcomeUnknownError as OutcomeUnknownError
    from .errors import SavepointClaimedError as SavepointClaimedError
    from .errors import SavepointPlaceError as SavepointPlaceError
    from .errors import SchemaTooNewError as SchemaTooNewError
    from .errors import StorageError as StorageError
    from .errors import StoreFailedError as StoreFailedError
    from .errors import UnfencedStoreError as UnfencedStoreError
    from .errors import UnknownStoreError as UnknownStoreError
    from .fencing import Generation as Generation
    from .files import FileCache as FileCache
    from .keys import validate_name as validate_name
    from .local import LocalStore as LocalStore
    from .manifest import CheckpointKind as CheckpointKind
    from .manifest import FileRef as FileRef
    from .manifest import Handle as Handle
    from .manifest import Manifest as Manifest
    from .manifest import OperatorRecord as OperatorRecord
    from .manifest import QueryRecord as QueryRecord
    from .manifest_json import decode_manifest as decode_manifest
    from .manifest_json import encode_manifest as encode_manifest
    from .open import open_store as open_store
    from .open import pipeline_uri as pipeline_uri
    from .probe import probe_exclusive_create as probe_exclusive_create
    from .retention import deletable as deletable
    from .retention import dropped as dropped
    from .retrying import Patience as Patience
    from .retrying import RetryingStore as RetryingStore
    from .retrying import RetryPolicy as RetryPolicy
    from .retrying import create_surely as create_surely
    from .savepoint import claim_savepoint as claim_savepoint
    from .savepoint import commit_savepoint as commit_savepoint
    from .savepoint import discard_savepoint as discard_savepoint
    from .savepoint import read_savepoint as read_savepoint
    from .savepoint_claim import ClaimedSavepoint as ClaimedSavepoint
    from .savepoint_claim import claim_restored as claim_restored
    from .savepoint_claim import drop_claimed as drop_claimed
    from .snapshots import RestoreReport as RestoreReport
    from .snapshots import SnapshotWriter as SnapshotWriter
    from .snapshots import Source as Source
    from .snapshots import StoredSnapshot as StoredSnapshot
    from .snapshots import copy_snapshot as copy_snapshot
    from .snapshots import restore_files as restore_files
    from .store import ObjectStat as ObjectStat
    from .store import Store as Store
    from .uri import join_uri as join_uri
    from .verification import DamagedObject as DamagedObject
    from .verification import Problem as Problem
    from .verification import Report as Report
    from .verification import damaged_objects as damaged_objects
    from .verification import missing_object as missing_object
    from .verification import newest_intact as newest_intact
    from .verification import verify as verify
    from .verification import verify_all as verify_all

__getattr__ = importer(
    __name__,
    {
        "catalog": ["Catalog"],
        "codec": ["from_json", "to_json"],
        "collect": ["Garbage", "collect_garbage", "discard", "discard_aborted"],
        "errors": [
            "ChandyError",
            "CodecError",
            "CredentialsError",
            "DamagedCheckpointError",
            "DamagedError",
            "FencedError",
            "InvalidKeyError",
            "InvalidNameError",
            "InvalidUriError",
            "NothingHereError",
            "ObjectExistsError",
            "ObjectMissingError",
            "OutcomeUnknownError",
            "SavepointClaimedError",
            "SavepointPlaceError",
            "SchemaTooNewError",
            "StorageError",
            "StoreFailedError",
            "UnfencedStoreError",
            "UnknownStoreError",
        ],
        "fencing": ["Generation"],
        "files": ["FileCache"],
        "keys": ["validate_name"],
        "local": ["LocalStore"],
        "manifest": ["CheckpointKind", "FileRef", "Handle", "Manifest", "OperatorRecord", "QueryRecord"],
        "manifest_json": ["decode_manifest", "encode_manifest"],
        "open": ["open_store", "pipeline_uri"],
        "savepoint_claim": ["ClaimedSavepoint", "claim_restored", "drop_claimed"],
        "probe": ["probe_exclusive_create"],
        "retention": ["deletable", "dropped"],
        "retrying": ["Patience", "RetryingStore", "RetryPolicy", "create_surely"],
        "savepoint": ["claim_savepoint", "commit_savepoint", "discard_savepoint", "read_savepoint"],
        "snapshots": [
            "RestoreReport",
            "SnapshotWriter",
            "Source",
            "StoredSnapshot",
            "copy_snapshot",
            "restore_files",
        ],
        "store": ["ObjectStat", "Store"],
        "uri": ["join_uri"],
        "verification": [
            "DamagedObject",
            "Problem",
            "Report",
            "damaged_objects",
            "missing_object",
            "newest_intact",
            "verify",
            "verify_all",
        ],
    },
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
