"""Durable bytes: stores, manifests, the files of snapshots, retention and garbage collection.

The public names are what a store for a further URI scheme is made of, and the errors that users see. They are light,
because tasks and state hosts start through this package. All else is imported from its module.
"""

from .errors import ChandyError as ChandyError
from .errors import CodecError as CodecError
from .errors import DamagedCheckpointError as DamagedCheckpointError
from .errors import DamagedError as DamagedError
from .errors import FencedError as FencedError
from .errors import InvalidNameError as InvalidNameError
from .errors import InvalidPlaceError as InvalidPlaceError
from .errors import NotDeletedError as NotDeletedError
from .errors import NothingHereError as NothingHereError
from .errors import ObjectExistsError as ObjectExistsError
from .errors import ObjectMissingError as ObjectMissingError
from .errors import OutcomeUnknownError as OutcomeUnknownError
from .errors import RefusedError as RefusedError
from .errors import SchemaTooNewError as SchemaTooNewError
from .errors import StorageError as StorageError
from .errors import StorageReplacedError as StorageReplacedError
from .errors import StoreFailedError as StoreFailedError
from .store import ObjectStat as ObjectStat
from .store import Store as Store
from .uri import StoreUri as StoreUri
