-- KIP-951: slowest record to the moving partition, with the KIP relative to without, geometric mean over moves.
WITH moves AS (
  SELECT fault, min(t_us) FILTER (state = 'intended') - 50000 AS from_us, max(t_us) FILTER (state = 'witnessed') + 100000 AS to_us
  FROM '<busy-300>/journal.jsonl' WHERE fault LIKE 'move-%' GROUP BY fault),
slowest AS (
  SELECT fault, arm, max(CASE status WHEN 'ok' THEN done_us - intended_us ELSE 'inf' END) AS us
  FROM '<busy-300>/outcomes/*.parquet' JOIN moves ON intended_us >= from_us AND intended_us < to_us
  WHERE op = 'produce' AND "partition" = 0 GROUP BY ALL),
ratios AS (SELECT ln(max(us) FILTER (arm = 'both') / max(us) FILTER (arm = 'neither')) AS value FROM slowest GROUP BY fault)
SELECT exp(avg(value)) AS value, exp(avg(value) - 2.0687 * stddev(value) / sqrt(24)) AS low, exp(avg(value) + 2.0687 * stddev(value) / sqrt(24)) AS high,
  count(*) AS n
FROM ratios;
