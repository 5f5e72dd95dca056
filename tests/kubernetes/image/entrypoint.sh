#!/bin/sh
# What the entry point of Spark's image does for an executor.
set -e
[ "$1" = executor ]
set --
for number in $(env | sed -n 's/^SPARK_JAVA_OPT_\([0-9]*\)=.*/\1/p' | sort -n); do
  eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
done
exec java "$@" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
