-- KIP-227: bytes that one more idle partition adds to an incremental fetch, mean of six slices of 6 s.
WITH counters AS (
  SELECT t_us, value, split_part(name, '_incremental/', 1) AS counter, regexp_extract(name, '/p(\d+)-', 1)::INT AS partitions
  FROM '<bytes>/metrics/*.parquet' WHERE name LIKE '%_incremental/p%-session-consume'),
slices AS (SELECT unnest(range(start_us, end_us - 5999999, 6000000)) AS start_us FROM '<bytes>/phases.json' WHERE name = 'steady'),
grown AS (
  SELECT start_us, partitions, counter, max(value) - coalesce(max(value) FILTER (t_us <= start_us), 0) AS value
  FROM counters JOIN slices ON t_us <= start_us + 6000000 GROUP BY ALL),
costs AS (
  SELECT start_us, partitions, sum(CASE counter WHEN 'client.fetches' THEN 0 WHEN 'client.fetch_record_bytes' THEN -value ELSE value END)
    / sum(value) FILTER (counter = 'client.fetches') AS bytes FROM grown GROUP BY ALL),
slopes AS (SELECT regr_slope(bytes, partitions) AS value FROM costs GROUP BY start_us)
SELECT avg(value) AS value, avg(value) - 2.5706 * stddev(value) / sqrt(6) AS low, avg(value) + 2.5706 * stddev(value) / sqrt(6) AS high, count(*) AS n
FROM slopes;
