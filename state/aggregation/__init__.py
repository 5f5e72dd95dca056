"""Running aggregates over Arrow columns: functions, accumulators, and partial aggregation before the shuffle."""
