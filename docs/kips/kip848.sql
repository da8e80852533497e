-- KIP-848: seconds by which a kept partition of the group is silent longer than without a group, the longest of each
-- change of members (one leaves, comes back, or dies), mean over the changes.
WITH assigned AS (
  SELECT t_us, worker, unnest(partitions)[2]::INT AS "partition" FROM '<java>/events.jsonl' WHERE event = 'assigned' AND workload = 'consumer'),
faults AS (
  SELECT entry, start_us, end_us, healing_us, clients FROM '<java>/phases.json'
  JOIN (SELECT fault, min(t_us) FILTER (state = 'healing') AS healing_us, last(targets.clients) AS clients FROM '<java>/journal.jsonl' GROUP BY fault)
  USING (fault) WHERE entry LIKE '%-consumer'),
changes AS (
  SELECT start_us AS from_us, healing_us AS to_us, clients AS away FROM faults WHERE entry IN ('left-consumer', 'died-consumer')
  UNION ALL SELECT healing_us, (SELECT min(start_us) FROM faults AS later WHERE start_us > gone.healing_us), clients
  FROM faults AS gone WHERE entry = 'left-consumer'),
owners AS (
  SELECT from_us, coalesce(to_us, (SELECT max(end_us) FROM '<java>/phases.json')) AS to_us, away, "partition",
    arg_max(worker, t_us) FILTER (t_us < from_us) AS owner, list(worker) FILTER (t_us >= from_us) AS later
  FROM changes JOIN assigned ON t_us < coalesce(to_us, 1e15) GROUP BY ALL),
kept AS (  -- a member that is stopped for a while ("busy") delivers nothing under any protocol
  SELECT from_us, to_us, "partition" FROM owners WHERE NOT list_contains(away, owner) AND coalesce(list_distinct(later), [owner]) = [owner]
  AND NOT EXISTS (FROM faults WHERE entry = 'busy-consumer' AND start_us < to_us AND end_us > from_us AND list_contains(clients, owner))),
records AS (
  SELECT workload, "partition", "offset", min(intended_us) AS intended_us, min(done_us) AS done_us
  FROM '<java>/outcomes/*.parquet' WHERE workload IN ('alone', 'consumer') AND op = 'consume' GROUP BY ALL),
waits AS (  -- a record is waited for from its time, or from the delivery before it, until it or a later one is delivered
  SELECT workload, "partition", greatest(due.intended_us, max(got.done_us) OVER (so_far ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS due_us,
    min(got.done_us) OVER (so_far ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS got_us
  FROM (SELECT * EXCLUDE workload FROM records WHERE workload = 'alone') AS due CROSS JOIN (VALUES ('alone'), ('consumer')) AS clients(workload)
  LEFT JOIN records AS got USING (workload, "partition", "offset") WINDOW so_far AS (PARTITION BY workload, "partition" ORDER BY due."offset")),
silences AS (
  SELECT from_us, workload, max(least(coalesce(got_us, 1e15), to_us) - greatest(due_us, from_us)) / 1e6 AS s
  FROM kept JOIN waits USING ("partition") WHERE due_us < to_us AND coalesce(got_us, 1e15) > from_us GROUP BY ALL),
differences AS (SELECT sum(CASE workload WHEN 'consumer' THEN s ELSE -s END) AS value FROM silences GROUP BY from_us)
SELECT avg(value) AS value, avg(value) - 1.7396 * stddev(value) / sqrt(18) AS low, avg(value) + 1.7396 * stddev(value) / sqrt(18) AS high, count(*) AS n
FROM differences;
