//! Client of docs/EXEC.md built on rdkafka, which contains librdkafka.

mod consume;
mod pipe;
mod produce;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use serde_json::{json, Value};

/// What every kind of client tells: the bytes of each broker, lost connections and late answers, and errors.
#[derive(Default)]
pub struct Told {
    counted: Mutex<HashMap<(String, &'static str), i64>>,
}

impl ClientContext for Told {
    fn stats(&self, statistics: Statistics) {
        let mut totals = BTreeMap::<i32, [i64; 2]>::new();
        let mut counted = self.counted.lock().unwrap();
        for (name, broker) in statistics.brokers {
            if broker.nodeid < 0 {
                continue; // a bootstrap address
            }
            let both = totals.entry(broker.nodeid).or_default(); // a coordinator has a connection of its own
            both[0] += broker.txbytes as i64;
            both[1] += broker.rxbytes as i64;
            let disconnects = broker.disconnects.unwrap_or(0);
            for (report, count) in [("node_disconnected", disconnects), ("request_timed_out", broker.req_timeouts as i64)] {
                let before = counted.insert((name.clone(), report), count).unwrap_or(0);
                if count > before {
                    pipe::say_timed(report, json!({"broker": broker.nodeid}));
                }
            }
        }
        pipe::say("traffic", json!({ "brokers": totals }));
    }

    fn error(&self, error: KafkaError, _reason: &str) {
        complain(&error);
    }
}

/// Return the name of an error in Kafka or librdkafka.
pub fn name_of(error: &KafkaError) -> String {
    if let KafkaError::Transaction(own) = error {
        return pipe::error_name(own.code() as i32);
    }
    error.rdkafka_error_code().map_or("_FAIL".to_string(), |code| pipe::error_name(code as i32))
}

/// Report an error that ends nothing.
pub fn complain(error: &KafkaError) {
    pipe::say("error", json!({"error": name_of(error), "detail": error.to_string()}));
}

/// Return a configuration: the arm's settings, which `own` and the start order precede.
pub fn config_of(start: &Value, own: &[(&str, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("statistics.interval.ms", "1000");
    if let Value::Object(settings) = &start["settings"] {
        for (name, value) in settings {
            config.set(name, text_of(value));
        }
    }
    for (name, value) in own {
        config.set(*name, value);
    }
    config.set("bootstrap.servers", text_of(&start["bootstrap"])).set("client.id", text_of(&start["client_id"]));
    if start["client_rack"].is_string() {
        config.set("client.rack", text_of(&start["client_rack"]));
    }
    config
}

/// Return a JSON text, number or truth value as librdkafka takes it.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Return when each partition of the topics has a leader; `led` counts those of a topic.
pub fn await_leaders(start: &Value, led: impl Fn(&str) -> Result<usize, KafkaError>) {
    for topic in start["topics"].as_array().unwrap() {
        loop {
            match led(topic["name"].as_str().unwrap()) {
                Ok(count) if count as u64 >= topic["partitions"].as_u64().unwrap() => break,
                Ok(_) => {}
                Err(error) => complain(&error),
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// Tell the version of the crate, what its librdkafka lacks, and why it refuses the settings of an arm.
fn describe(settings: &str) {
    let settings: Value = serde_json::from_str(settings).unwrap();
    let start = json!({"settings": settings, "bootstrap": "127.0.0.1:1", "client_id": "describe", "client_rack": null});
    let tried = |own: &[(&str, String)]| {
        let mut config = config_of(&start, own);
        config.set("group.id", "describe").remove("statistics.interval.ms");
        config.create::<BaseConsumer>().err().map(|error| error.to_string())
    };
    let mut lacks = json!({});
    if tried(&[("group.protocol", "consumer".to_string())]).is_some() {
        lacks["protocol"] = json!("this version's librdkafka has no consumer protocol (KIP-848)");
    }
    if cfg!(not(feature = "newest")) {
        lacks["commits"] = json!("this version can't commit before it gives up partitions");
    }
    println!("{}", json!({"version": env!("LIBRARY_VERSION"), "lacks": lacks, "refused": tried(&[])}));
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some("--describe") {
        describe(&arguments[2]);
        return;
    }
    let (start, orders) = pipe::open();
    match start["op"].as_str() {
        Some("produce") => produce::run(&start, orders),
        Some("consume") => consume::run(&start, orders),
        Some("commit") => consume::commit(&start, orders),
        _ => pipe::die(format!("unknown op {}", start["op"])),
    }
    pipe::say("bye", json!({}));
    std::process::exit(0); // threads of librdkafka may still run
}
