-- KIP-392: percentage of a consumer's bytes that came from other racks than b, its own, mean of slices of 10 s.
WITH edges AS (
  SELECT unnest(range(max(end_us) FILTER (entry = 'replicas') + 10000000, max(end_us) - 9999999, 10000000)) AS start_us
  FROM '<near>/phases.json'),
samples AS (
  SELECT name LIKE '%-k2/%' AS near, t_us, value, lead(t_us) OVER by_broker AS next_us, lead(value) OVER by_broker AS next_value
  FROM '<near>/metrics/*.parquet' WHERE name LIKE 'client.received_bytes/client_b-%/reads-closest-consume'
  WINDOW by_broker AS (PARTITION BY name ORDER BY t_us)),
counts AS (  -- between two samples bytes flow evenly
  SELECT start_us, near, sum(sign * (value + (next_value - value) * (start_us + shift_us - t_us) / (next_us - t_us))) AS bytes
  FROM edges, (VALUES (0, -1), (10000000, 1)) AS ends(shift_us, sign)
  JOIN samples ON start_us + shift_us >= t_us AND start_us + shift_us < next_us GROUP BY ALL),
shares AS (SELECT 100 * coalesce(sum(bytes) FILTER (NOT near), 0) / sum(bytes) AS value FROM counts GROUP BY start_us)
SELECT avg(value) AS value, count(*) AS n FROM shares;
