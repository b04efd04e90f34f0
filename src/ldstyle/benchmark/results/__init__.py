"""Results of a grid: records, statistics, status and verification."""
