-- KIP-951's own benchmark: p99.9, maximum and mean of each launch, from the numbers of records by whole ms of latency.
WITH counts AS (
  SELECT regexp_extract(filename, '([^/]+)/analysis', 1) AS run, unnest(latencies[1].counts) AS pair
  FROM read_json('docs/evidence/kip951-benchmark/*/analysis.json', filename = true)),
ranked AS (
  SELECT run, pair[1] AS ms, pair[2] AS records, sum(pair[2]) OVER (PARTITION BY run ORDER BY pair[1]) AS seen,
    sum(pair[2]) OVER (PARTITION BY run) AS n FROM counts)
SELECT run, min(ms) FILTER (seen >= ceil(0.999 * n)) AS p999_ms, max(ms) AS max_ms, sum(ms * records) / any_value(n) AS mean_ms,
  any_value(n) AS records FROM ranked GROUP BY run ORDER BY run;
