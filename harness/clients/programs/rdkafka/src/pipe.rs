//! Protocol of docs/EXEC.md: orders on standard input, reports on standard output.

use std::collections::HashMap;
use std::io::{stdin, stdout, Write};
use std::process::exit;
use std::sync::mpsc::{channel, Receiver};
use std::sync::{LazyLock, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{json, Map, Value};

static ERRORS: LazyLock<HashMap<i32, String>> = LazyLock::new(|| {
    let names: HashMap<String, String> = serde_json::from_str(include_str!("../errors.json")).unwrap();
    names.into_iter().map(|(code, name)| (code.parse().unwrap(), name)).collect()
});
static DUE: LazyLock<Mutex<HashMap<u64, Instant>>> = LazyLock::new(Mutex::default); // of each order without a report

/// Write a report.
pub fn say(report: &str, details: Value) {
    let mut message = Map::from_iter([("say".to_string(), json!(report))]);
    if let Value::Object(own) = details {
        message.extend(own);
    }
    let mut output = stdout().lock();
    let written = writeln!(output, "{}", Value::Object(message)).and_then(|()| output.flush());
    if written.is_err() {
        exit(1);
    }
}

/// Write a report with the time on the host's monotonic clock.
pub fn say_timed(report: &str, mut details: Value) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    details["at_ns"] = json!(now.tv_sec as i64 * 1_000_000_000 + now.tv_nsec as i64);
    say(report, details);
}

/// Report an error after which the program can't continue.
pub fn die(why: impl ToString) -> ! {
    eprintln!("{}", why.to_string());
    say("died", json!({"why": why.to_string()}));
    exit(1);
}

/// Return the name of an error code of Kafka or librdkafka.
pub fn error_name(code: i32) -> String {
    ERRORS.get(&code).cloned().unwrap_or_else(|| "UNKNOWN_SERVER_ERROR".to_string())
}

/// Read the start order; later orders arrive on the channel, which ends with `close`. The end of standard input ends the
/// process at once.
pub fn open() -> (Value, Receiver<Value>) {
    let next = || -> Value {
        let mut line = String::new();
        match stdin().read_line(&mut line) {
            Ok(length) if length > 0 => serde_json::from_str(&line).unwrap_or_else(|error| die(error)),
            _ => exit(1),
        }
    };
    let start = next();
    let (sender, orders) = channel();
    spawn(move || {
        let mut open = Some(sender);
        loop {
            let order = next();
            if order["do"] == "close" {
                open = None;
            } else if let Some(sender) = &open {
                let _ = sender.send(order);
            }
        }
    });
    spawn(|| loop {
        sleep(Duration::from_millis(50));
        let now = Instant::now();
        let late: Vec<u64> = DUE.lock().unwrap().iter().filter(|(_, due)| **due < now).map(|(seq, _)| *seq).collect();
        for seq in late {
            failed(seq, "_MSG_TIMED_OUT", Some(true));
        }
    });
    (start, orders)
}

/// Start the deadline of an order, after which the order is reported as failed, in doubt.
pub fn begin(seq: u64, deadline: Duration) {
    DUE.lock().unwrap().insert(seq, Instant::now() + deadline);
}

/// Report an order as acknowledged, unless it was reported.
pub fn acked(seq: u64, place: Value) {
    once(seq, "acked", place);
}

/// Report an order as failed, unless it was reported; without `in_doubt`, the error decides.
pub fn failed(seq: u64, error: &str, in_doubt: Option<bool>) {
    let doubt = in_doubt.map_or(json!({}), |value| json!({"in_doubt": value}));
    once(seq, "failed", with(doubt, "error", json!(error)));
}

fn once(seq: u64, report: &str, details: Value) {
    if DUE.lock().unwrap().remove(&seq).is_some() {
        say(report, with(details, "seq", json!(seq)));
    }
}

/// Return an object with another field.
pub fn with(mut object: Value, name: &str, value: Value) -> Value {
    object[name] = value;
    object
}

/// Return when every order is reported.
pub fn await_reports() {
    while !DUE.lock().unwrap().is_empty() {
        sleep(Duration::from_millis(10));
    }
}
