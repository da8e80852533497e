-- KIP-966: power cuts after which a record is gone that was acknowledged since the cut before.
WITH cuts AS (
  SELECT t_us AS cut_us, lag(t_us, 1, -1) OVER (ORDER BY t_us) AS before_us
  FROM '<elr>/journal.jsonl' WHERE fault LIKE 'last-%' AND state = 'injected'),
acknowledged AS (SELECT producer_id, seq, done_us FROM '<elr>/outcomes/*.parquet' WHERE op = 'produce' AND status = 'ok'),
gone AS (SELECT producer_id, seq FROM acknowledged EXCEPT SELECT producer_id, seq FROM '<elr>/log/*.parquet'),
losses AS (
  SELECT cut_us, count(gone.seq) AS lost FROM cuts JOIN acknowledged ON done_us > before_us AND done_us <= cut_us
  LEFT JOIN gone USING (producer_id, seq) GROUP BY cut_us)
SELECT count(*) FILTER (lost > 0) AS value, count(*) AS n FROM losses;
