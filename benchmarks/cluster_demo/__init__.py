"""The demo on a cluster, ``python -m benchmarks.cluster_demo``: a machine joins, and one loses its power."""
