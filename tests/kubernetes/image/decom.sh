#!/bin/sh
# What the image's hook does before a pod is stopped: the executor is decommissioned, and the hook waits for its end.
executor=$(pgrep -o java)
kill -PWR "$executor"
exec tail --pid="$executor" -f /dev/null
