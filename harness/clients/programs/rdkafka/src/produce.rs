//! Producer, in transactions if the start order has them.

use std::sync::mpsc::Receiver;
use std::thread::sleep;
use std::time::Duration;

use base64::prelude::{Engine, BASE64_STANDARD};
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::statistics::Statistics;
use rdkafka::Message;
use serde_json::{json, Value};

use crate::{await_leaders, complain, config_of, name_of, pipe, text_of, Told};

struct Reports {
    told: Told,
    has_offsets: bool,
}

impl ClientContext for Reports {
    fn stats(&self, statistics: Statistics) {
        self.told.stats(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.told.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, seq: Box<u64>) {
        match result {
            Ok(message) if self.has_offsets => {
                pipe::acked(*seq, json!({"partition": message.partition(), "offset": message.offset()}))
            }
            Ok(message) => pipe::acked(*seq, json!({"partition": message.partition()})),
            Err((error, _)) => pipe::failed(*seq, &name_of(error), None),
        }
    }
}

type Own = ThreadedProducer<Reports>;

fn deadline_of(start: &Value) -> Duration {
    Duration::from_millis(start["deadline_ms"].as_u64().unwrap())
}

/// Open a producer, and wait until it can send its first record.
fn open(start: &Value) -> Own {
    let transaction = &start["transaction"];
    let timeout_ms = transaction["timeout_ms"].as_u64();
    let deadline_ms = start["deadline_ms"].as_u64().unwrap();
    let mut own = vec![
        ("acks", text_of(&start["acks"])),
        ("enable.idempotence", text_of(&start["idempotence"])),
        ("linger.ms", text_of(&start["linger_ms"])),
        ("delivery.timeout.ms", timeout_ms.unwrap_or(deadline_ms).min(deadline_ms).to_string()),
    ];
    if let Some(timeout_ms) = timeout_ms {
        own.push(("transactional.id", text_of(&transaction["id"])));
        own.push(("transaction.timeout.ms", timeout_ms.to_string()));
    }
    let reports = Reports { told: Told::default(), has_offsets: start["acks"] != "0" };
    let producer: Own = config_of(start, &own).create_with_context(reports).unwrap_or_else(|error| pipe::die(error));
    await_leaders(start, |topic| {
        let metadata = producer.client().fetch_metadata(Some(topic), Duration::from_secs(2))?;
        Ok(metadata.topics().iter().flat_map(|known| known.partitions()).filter(|one| one.leader() >= 0).count())
    });
    while timeout_ms.is_some() {
        match producer.init_transactions(deadline_of(start)) {
            Ok(()) => break,
            Err(error) => complain(&error),
        }
        sleep(Duration::from_millis(50));
    }
    producer
}

fn content(text: &Value) -> Option<Vec<u8>> {
    text.as_str().map(|text| BASE64_STANDARD.decode(text).unwrap_or_else(|error| pipe::die(error)))
}

fn send(producer: &Own, start: &Value, order: &Value) {
    let seq = order["seq"].as_u64().unwrap();
    let (key, value) = (content(&order["key"]), content(&order["value"]).unwrap_or_default());
    let mut headers = OwnedHeaders::new();
    for header in order["headers"].as_array().unwrap() {
        let value = content(&header[1]);
        headers = headers.insert(Header { key: header[0].as_str().unwrap(), value: value.as_ref() });
    }
    let topic = order["topic"].as_str().unwrap();
    let mut record = BaseRecord::<[u8], [u8], Box<u64>>::with_opaque_to(topic, Box::new(seq)).payload(&value);
    record = record.headers(headers);
    if let Some(key) = &key {
        record = record.key(key);
    }
    pipe::begin(seq, deadline_of(start) + Duration::from_secs(2)); // librdkafka looks once a second
    if let Err((error, _)) = producer.send(record) {
        pipe::failed(seq, &name_of(&error), Some(false));
    }
}

/// Report that an order about transactions was carried out, or what librdkafka demands after its failure.
fn transacted(order: &str, result: Result<(), KafkaError>) {
    let mut report = json!({ "did": order });
    if let Err(error) = result {
        report["error"] = json!(name_of(&error));
        report["in_doubt"] = json!(order != "begin_transaction");
        if let KafkaError::Transaction(own) = &error {
            if own.txn_requires_abort() {
                report["then"] = json!("abort");
            } else if own.is_retriable() && !own.is_fatal() {
                report["then"] = json!("repeat");
            }
        }
    }
    pipe::say("transacted", report);
}

pub fn run(start: &Value, orders: Receiver<Value>) {
    let mut producer = open(start);
    pipe::say("ready", json!({"accepts": ["topics", "transactions"]}));
    for order in orders {
        let name = order["do"].as_str().unwrap();
        match name {
            "begin_transaction" => transacted(name, producer.begin_transaction()),
            "commit_transaction" => transacted(name, producer.commit_transaction(deadline_of(start))),
            "abort_transaction" => transacted(name, producer.abort_transaction(deadline_of(start))),
            "reopen_producer" => {
                producer.purge(PurgeConfig::default().queue().inflight());
                pipe::await_reports();
                drop(producer);
                producer = open(start);
                transacted(name, Ok(()));
            }
            _ => send(&producer, start, &order),
        }
    }
    if start["transaction"].is_object() {
        producer.purge(PurgeConfig::default().queue().inflight());
    }
    pipe::await_reports();
}
