"""The stores that Chandy brings, one module for each kind, and what opens and retries them.

A backend is a module with ``open_uri(uri) -> Store`` and an entry point of the group ``chandy.stores``, in this
distribution or any other. Its store makes one attempt for each call and marks what may succeed later
(``StoreFailedError.transient``). What else a store may do is handled above it:

* **It fails in passing**: ``RetryingStore`` alone tries again, with growing random waits. Retries of clients are off,
  because a create that a client repeats finds its own object and takes it for somebody else's.
* **It loses an answer**: a create that finds the object after such an attempt reads it; writers write bytes that
  nobody else writes. While nobody can tell, the fate of a manifest stays open (``execution.commit``): the checkpoint
  neither completes nor fails, and nothing of it is deleted.
* **It answers wrongly once**: ``storage.verified`` reads again, by connections of its own, before it says that an
  object is damaged or missing. Nothing else says so.
* **It refuses to delete an object**: the others are deleted, and one error names those that are left.
* **It ignores the condition of an exclusive create**: the probe at the start refuses such a store.
* **It is slow**: the small files of a host go into one pack, so a checkpoint takes a request for each new SST file
  and host, and a constant. Savepoints in the same service are copied there.
"""
