"""The transactional sink that runs a stream writer of PySpark's Python data source API."""
