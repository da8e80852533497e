//! Consumer, and committer for groups without members.

use std::collections::HashMap;
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn, JoinHandle};
use std::time::{Duration, Instant};

use base64::prelude::{Engine, BASE64_STANDARD};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::statistics::Statistics;
use rdkafka::{Message, Offset, TopicPartitionList};
use serde_json::{json, Value};

use crate::{await_leaders, complain, config_of, name_of, pipe, text_of, Told};

type Place = (String, i32);
type Offsets = HashMap<Place, i64>;

/// What a consumer tells of its group, and what it has processed and not committed.
pub struct Member {
    told: Told,
    topics: Vec<String>,
    commits_itself: bool,
    processed: Arc<Mutex<Offsets>>,
    is_ready: Mutex<bool>,
}

impl ClientContext for Member {
    fn stats(&self, statistics: Statistics) {
        self.told.stats(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.told.error(error, reason);
    }
}

impl Member {
    fn ready(&self) {
        let mut is_ready = self.is_ready.lock().unwrap();
        if !*is_ready {
            *is_ready = true;
            pipe::say("ready", json!({"accepts": ["isolation", "topics"]}));
        }
    }

    /// Report partitions as `assigned`, `revoked` or `lost`, each topic of the order by itself.
    fn say_partitions(&self, report: &str, places: &[Place]) {
        for name in &self.topics {
            let own: Vec<i32> = places.iter().filter(|(topic, _)| topic == name).map(|(_, number)| *number).collect();
            pipe::say_timed(report, json!({"topic": name, "partitions": own}));
        }
    }

    /// Report partitions that are given up, after a commit if the callback has the `consumer`.
    fn revoked(&self, consumer: Option<&BaseConsumer<Member>>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let places = places_of(list);
            let mut due = Offsets::new();
            for place in &places {
                if let Some(offset) = self.processed.lock().unwrap().remove(place) {
                    due.insert(place.clone(), offset);
                }
            }
            let is_lost = consumer.is_some_and(|consumer| consumer.assignment_lost());
            if let Some(consumer) = consumer.filter(|_| self.commits_itself && !is_lost) {
                commit_processed(consumer, due);
            }
            self.say_partitions(if is_lost { "lost" } else { "revoked" }, &places);
        }
    }

    fn assigned(&self, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                self.say_partitions("assigned", &places_of(list));
                self.ready();
            }
            Rebalance::Revoke(_) => {}
            Rebalance::Error(error) => pipe::say("error", json!({"error": "_FAIL", "detail": error.to_string()})),
        }
    }
}

// since version 0.37 of rdkafka
#[cfg(feature = "newest")]
impl ConsumerContext for Member {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        self.revoked(Some(consumer), rebalance);
    }

    fn post_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        self.assigned(rebalance);
    }
}

#[cfg(not(feature = "newest"))]
impl ConsumerContext for Member {
    fn pre_rebalance<'a>(&self, rebalance: &Rebalance<'a>) {
        self.revoked(None, rebalance);
    }

    fn post_rebalance<'a>(&self, rebalance: &Rebalance<'a>) {
        self.assigned(rebalance);
    }
}

fn places_of(list: &TopicPartitionList) -> Vec<Place> {
    list.elements().iter().map(|one| (one.topic().to_string(), one.partition())).collect()
}

fn list_of(offsets: &Offsets) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for ((topic, partition), offset) in offsets {
        let added = list.add_partition_offset(topic, *partition, Offset::Offset(*offset));
        added.unwrap_or_else(|error| pipe::die(error));
    }
    list
}

/// Commit offsets, and report them when Kafka has accepted them.
fn commit_processed(consumer: &BaseConsumer<Member>, due: Offsets) {
    if due.is_empty() {
        return;
    }
    let began = Instant::now();
    if let Err(error) = consumer.commit(&list_of(&due), CommitMode::Sync) {
        complain(&error);
        return;
    }
    let took_us = began.elapsed().as_micros() as u64;
    let mut topics = HashMap::<String, HashMap<String, i64>>::new();
    for ((topic, partition), offset) in due {
        topics.entry(topic).or_default().insert(partition.to_string(), offset);
    }
    for (topic, offsets) in topics {
        pipe::say_timed("committed", json!({"topic": topic, "offsets": offsets, "took_us": took_us}));
    }
}

fn open(start: &Value) -> BaseConsumer<Member> {
    let group = start["group"].as_str();
    let mut own = vec![
        ("group.id", text_of(if group.is_some() { &start["group"] } else { &start["client_id"] })),
        ("enable.auto.commit", (group.is_some() && start["commit"].is_null()).to_string()),
        ("auto.offset.reset", text_of(&start["from"])),
    ];
    for (name, key) in
        [("group.protocol", "group_protocol"), ("group.instance.id", "instance_id"), ("isolation.level", "isolation")]
    {
        if start[key].is_string() {
            own.push((name, text_of(&start[key])));
        }
    }
    if start["assignor"].is_string() {
        let remote = start["group_protocol"] == "consumer";
        let name = if remote { "group.remote.assignor" } else { "partition.assignment.strategy" };
        own.push((name, text_of(&start["assignor"])));
    }
    let names = start["topics"].as_array().unwrap().iter().map(|topic| text_of(&topic["name"])).collect();
    let member = Member {
        told: Told::default(),
        topics: names,
        commits_itself: !start["commit"].is_null(),
        processed: Arc::default(),
        is_ready: Mutex::new(false),
    };
    config_of(start, &own).create_with_context(member).unwrap_or_else(|error| pipe::die(error))
}

/// Assign every partition from its start offset, or subscribe.
fn begin(consumer: &BaseConsumer<Member>, start: &Value) {
    let member = consumer.context();
    if start["group"].is_null() {
        let mut starts = Offsets::new();
        for topic in start["topics"].as_array().unwrap() {
            for (number, offset) in topic["positions"].as_object().unwrap() {
                starts.insert((text_of(&topic["name"]), number.parse().unwrap()), offset.as_i64().unwrap());
            }
        }
        consumer.assign(&list_of(&starts)).unwrap_or_else(|error| pipe::die(error));
        member.say_partitions("assigned", &starts.into_keys().collect::<Vec<_>>());
        member.ready();
        return;
    }
    // a name that begins with ^ is a pattern, which need not match the whole name of a topic
    let pattern = start["pattern"].as_str().map(|pattern| format!("^({pattern})$"));
    let names: Vec<&str> = match &pattern {
        Some(pattern) => vec![pattern],
        None => member.topics.iter().map(String::as_str).collect(),
    };
    consumer.subscribe(&names).unwrap_or_else(|error| pipe::die(error));
    if start["members"].as_u64().unwrap_or(1) > 1 {
        member.ready(); // a member of several may get no partitions
    }
}

fn process(member: &Member, start: &Value, message: &BorrowedMessage<'_>) {
    sleep(Duration::from_millis(start["processing_ms"].as_u64().unwrap_or(0)));
    let mark = message.headers().and_then(|headers| {
        let found = headers.iter().filter(|header| header.key == "aftershock").last();
        found.and_then(|header| header.value.map(|value| BASE64_STANDARD.encode(value)))
    });
    let place = (message.topic().to_string(), message.partition());
    let report = json!({"topic": place.0, "partition": place.1, "offset": message.offset(), "mark": mark,
        "size_bytes": message.payload().map_or(0, <[u8]>::len)});
    pipe::say_timed("record", report);
    member.processed.lock().unwrap().insert(place, message.offset() + 1);
}

pub fn run(start: &Value, orders: Receiver<Value>) {
    let consumer = Arc::new(open(start));
    begin(&consumer, start);
    let (every_ms, every_records) = (start["commit"]["every_ms"].as_u64(), start["commit"]["every_records"].as_u64());
    let (mut records, mut committed) = (0, Instant::now());
    let mut committing: Option<JoinHandle<()>> = None; // one commit at a time
    loop {
        if !matches!(orders.try_recv(), Err(TryRecvError::Empty)) {
            break; // a consumer has no order but `close`
        }
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                process(consumer.context(), start, &message);
                records += 1;
            }
            Some(Err(error)) => complain(&error),
            None => {}
        }
        let late = every_ms.is_some_and(|ms| committed.elapsed() >= Duration::from_millis(ms));
        let is_due = late || every_records.is_some_and(|enough| records >= enough);
        if is_due && committing.as_ref().is_none_or(JoinHandle::is_finished) {
            let due = std::mem::take(&mut *consumer.context().processed.lock().unwrap());
            (records, committed) = (0, Instant::now());
            let own = consumer.clone();
            committing = Some(spawn(move || commit_processed(&own, due)));
        }
    }
    if let Some(last) = committing {
        let _ = last.join();
    }
    if start["group"].is_string() {
        consumer.unsubscribe(); // revokes, which commits
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until && consumer.assignment().is_ok_and(|left| left.count() > 0) {
            consumer.poll(Duration::from_millis(50));
        }
    }
    drop(consumer); // leaves the group
}

/// Commit the orders of each group one by one with a consumer of its own, which reads nothing, until `close`.
pub fn commit(start: &Value, orders: Receiver<Value>) {
    let deadline = Duration::from_millis(start["deadline_ms"].as_u64().unwrap());
    let topic = text_of(&start["topic"]);
    let mut queues = HashMap::<String, Sender<(Value, Instant)>>::new();
    for group in start["groups"].as_array().unwrap() {
        let own = [("group.id", text_of(group)), ("enable.auto.commit", "false".to_string())];
        let created = config_of(start, &own).create_with_context(Told::default());
        let consumer: Arc<BaseConsumer<Told>> = Arc::new(created.unwrap_or_else(|error| pipe::die(error)));
        await_leaders(start, |topic| {
            let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(2))?;
            Ok(metadata.topics().iter().flat_map(|known| known.partitions()).filter(|one| one.leader() >= 0).count())
        });
        let served = consumer.clone();
        spawn(move || loop {
            served.poll(Duration::from_secs(1));
        });
        let (sender, queue) = channel();
        let topic = topic.clone();
        spawn(move || queue.into_iter().for_each(|(order, due)| commit_one(&consumer, &topic, &order, due)));
        queues.insert(text_of(group), sender);
    }
    pipe::say("ready", json!({}));
    for order in orders {
        pipe::begin(order["seq"].as_u64().unwrap(), deadline);
        let _ = queues[order["group"].as_str().unwrap()].send((order, Instant::now() + deadline));
    }
    pipe::await_reports();
}

fn commit_one(consumer: &BaseConsumer<Told>, topic: &str, order: &Value, due: Instant) {
    let seq = order["seq"].as_u64().unwrap();
    let place = (topic.to_string(), order["partition"].as_i64().unwrap() as i32);
    let list = list_of(&Offsets::from([(place, order["offset"].as_i64().unwrap())]));
    loop {
        match consumer.commit(&list, CommitMode::Sync) {
            Ok(()) => return pipe::acked(seq, json!({})),
            Err(error) if Instant::now() > due => return pipe::failed(seq, &name_of(&error), None),
            Err(_) => sleep(Duration::from_millis(100)), // librdkafka gives a commit up while it knows no coordinator
        }
    }
}

impl ConsumerContext for Told {}
