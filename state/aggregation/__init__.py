"""Running aggregates over columns: functions, partial results, and combining rows before they are sent."""
