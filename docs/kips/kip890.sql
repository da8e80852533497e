-- KIP-890: late commits that a broker answered while the next transaction was open, and that violated this transaction.
WITH late AS (
  SELECT transactional_id, t_us FROM '<version-2>/events.jsonl'
  WHERE event = 'held_request_delivered' AND met = 'open' AND fault LIKE 'late-reference-%'),
met AS (
  SELECT late.t_us, outcome, producer_id, unnest(range(first_seq, last_seq + 1)) AS seq
  FROM late JOIN '<version-2>/transactions/*.parquet' USING (transactional_id)
  WHERE late.t_us BETWEEN begin_us AND coalesce(done_us, late.t_us)),
ended AS (
  SELECT *, first_value(marker IGNORE NULLS) OVER (
    PARTITION BY topic, partition, kafka_producer_id ORDER BY first_offset ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS fate
  FROM '<version-2>/batches/*.parquet' WHERE transactional),
logged AS (
  SELECT producer_id, seq, fate FROM '<version-2>/log/*.parquet' log JOIN ended ON log.topic = ended.topic
  AND log.partition = ended.partition AND log."offset" BETWEEN first_offset AND last_offset WHERE marker IS NULL),
acknowledged AS (SELECT producer_id, seq FROM '<version-2>/outcomes/*.parquet' WHERE op = 'produce' AND status = 'ok'),
transactions AS (
  SELECT t_us, any_value(outcome) AS outcome, coalesce(bool_or(fate = 'commit'), false) AS committed,
    coalesce(bool_or(fate = 'abort'), false) OR bool_or(fate IS NULL AND acknowledged.seq IS NOT NULL) AS lacking
  FROM met LEFT JOIN logged USING (producer_id, seq) LEFT JOIN acknowledged USING (producer_id, seq) GROUP BY t_us)
SELECT
  count(*) FILTER ((outcome IN ('aborted', 'failed') AND committed) OR (committed AND lacking) OR (outcome = 'committed' AND lacking)) AS value,
  count(*) AS n
FROM transactions;
