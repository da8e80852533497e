-- KIP-794: percentage of the acknowledged bytes that went to the slow broker (partition 0), mean of slices of 20 s.
WITH slices AS (
  SELECT unnest(range(start_us + 20000000, end_us - 19999999, 20000000)) AS start_us FROM '<shipped>/phases.json' WHERE entry = 'series1'),
shares AS (
  SELECT 100 * sum(bytes) FILTER (partition = 0) / sum(bytes) AS value
  FROM '<shipped>/outcomes/*.parquet' JOIN slices ON intended_us >= start_us AND intended_us < start_us + 20000000
  WHERE op = 'produce' AND arm = 'uniform' AND status = 'ok' GROUP BY start_us)
SELECT avg(value) AS value, avg(value) - 1.8595 * stddev(value) / sqrt(9) AS low, avg(value) + 1.8595 * stddev(value) / sqrt(9) AS high, count(*) AS n
FROM shares;
