"""The logs in a query's working directory as Spark writes them: their names, versions and lines."""
