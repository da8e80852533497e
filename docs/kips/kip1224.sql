-- KIP-1224: ms by which the median lone commit is faster with the adaptive linger than with 5 ms, mean of slices of 6 s.
-- In each of three runs another broker is adaptive, and another has 5 ms; a slice is the mean of the three runs.
WITH runs AS (FROM (VALUES ('<idle-1>', 1, 2), ('<idle-2>', 2, 3), ('<idle-3>', 3, 1)) AS runs(run, adaptive, fixed)),
slices AS (
  SELECT run, unnest(range(start_us, end_us - 5999999, 6000000)) AS start_us, unnest(range((end_us - start_us) // 6000000)) AS slice
  FROM read_json('docs/evidence/kip1224/*-idle-*/phases.json', filename = true) JOIN runs ON starts_with(filename, run) WHERE name = 'steady'),
coordinators AS (
  SELECT run, "group", arg_max(broker_id, (partition, "offset")) AS broker_id
  FROM read_parquet('docs/evidence/kip1224/*-idle-*/offsets/*.parquet', filename = true) JOIN runs ON starts_with(filename, run) GROUP BY ALL),
commits AS (
  SELECT run, "group", intended_us, CASE status WHEN 'ok' THEN (done_us - intended_us) / 1000 ELSE 'inf' END AS ms
  FROM read_parquet('docs/evidence/kip1224/*-idle-*/outcomes/*.parquet', filename = true) JOIN runs ON starts_with(filename, run) WHERE arm = 'plain'),
medians AS (
  SELECT run, slice, median(ms) FILTER (broker_id = fixed) - median(ms) FILTER (broker_id = adaptive) AS saved_ms
  FROM commits JOIN slices USING (run) JOIN coordinators USING (run, "group") JOIN runs USING (run)
  WHERE intended_us >= start_us AND intended_us < start_us + 6000000 GROUP BY ALL),
means AS (SELECT avg(saved_ms) AS value FROM medians GROUP BY slice HAVING count(*) = 3)
SELECT avg(value) AS value, avg(value) - 2.5706 * stddev(value) / sqrt(6) AS low, avg(value) + 2.5706 * stddev(value) / sqrt(6) AS high, count(*) AS n
FROM means;
